#!/usr/bin/env bash
# HTTP/3 of the gateway with a client of other people: aioquic, which accepts pushes. One line for each case.
#
#   aioquic ═ HTTP/3 over QUIC ═▶ tandem gateway ─▶ origin
#      └ the case "datagrams": CONNECT-UDP, with HTTP datagrams and capsules
#      └ the cases "early", "unsafe" and "again": a client that returns with a ticket
#
#   interop/h3.sh [CASE...]        TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"

cases=("$@")
[ ${#cases[@]} -gt 0 ] || cases=(get post many push datagrams early unsafe again)

need openssl openssl python3 python3 pip3 python3-pip
pip3 install --quiet --disable-pip-version-check --root-user-action=ignore --target "$work/python" aioquic==1.2.0 >"$work/pip.log" 2>&1 ||
    { cat "$work/pip.log" >&2 && exit 1; }
build_tandem
peer=(env "PYTHONPATH=$work/python" python3 "$here/h3/peer.py")

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=interop \
    -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE \
    -keyout "$work/key.pem" -out "$work/cert.pem" 2>"$work/openssl.log" || exit 1
start "$own_address" "${peer[@]}" origin
origin=$address

# Starts a gateway with these options.
gateway() {
    start '^tandem gateway: listening on h3\+quic://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" gateway --open \
        --listen "h3+quic://127.0.0.1:0?cert=$work/cert.pem&key=$work/key.pem" "$@"
}

gateway --hold-out 0 --mode "reverse=http://$origin" --allow-host '*'
reverse=$address
gateway --udp --allow-dest 127.0.0.1
forward=$address
for case in "${cases[@]}"; do
    # A reverse gateway carries no UDP.
    case $case in datagrams) there=$forward ;; *) there=$reverse ;; esac
    run "aioquic asks $case" "${peer[@]}" "$there" "$work/cert.pem" "$case"
done
finish
