#!/usr/bin/env bash
# HTTP/3 of the gateway with clients of other people: aioquic, which accepts pushes, and the package http3 of quic-go. One
# line for each case.
#
#   aioquic, quic-go ═ HTTP/3 over QUIC ═▶ tandem gateway ─▶ origin, of Python or Node
#      └ the cases "tunnel" and "datagrams": CONNECT, and CONNECT-UDP with HTTP datagrams and capsules
#      └ the cases "early", "unsafe" and "again": a client that returns with a ticket
#
#   interop/h3.sh [CASE...]        TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"
limit=60

need openssl openssl node nodejs
install_aioquic
build_quic_go
build_tandem
aioquic=("${python[@]}" "$here/h3/peer.py")

make_certificate
start "$own_address" "${aioquic[@]}" origin
pages=$address
start "$own_address" node "$here/bridge/peer.js" origin http
messages=$address

# Starts a gateway with these options.
gateway() {
    start '^tandem gateway: listening on h3\+quic://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" gateway --open \
        --listen "h3+quic://127.0.0.1:0?cert=$work/cert.pem&key=$work/key.pem" "$@"
}

# Runs the cases that were asked for: ask LABEL ADDRESS CASES COMMAND...
ask() {
    local label=$1 there case
    for case in $3; do
        # A reverse gateway has no tunnels.
        case $case in tunnel | datagrams) there=$forward ;; *) there=$2 ;; esac
        [ -z "$wanted" ] || [[ " $wanted " == *" $case "* ]] || continue
        run "$label asks $case" "${@:4}" "$there" "$work/cert.pem" "$case"
    done
}

wanted=$*
gateway --udp --allow-dest 127.0.0.1
forward=$address
gateway --hold-out 0 --mode "reverse=http://$pages" --allow-host '*'
ask aioquic "$address" 'get post many push datagrams early unsafe again' "${aioquic[@]}"
gateway --hold-out 0 --mode "reverse=http://$messages" --allow-host '*' --max-connections-per-origin 128
ask quic-go "$address" 'get head unmodified large post trailers hints cut together missing fields load early tunnel datagrams drain' \
    env "GATEWAY=$pid" "$work/quic-go" client
finish
