#!/usr/bin/env bash
# SPDY over TLS, negotiated by ALPN: our own proxies with other people's programs at the other end of the session, as real
# processes. One line for each case; fails if one does.
#
#   web browse ─▶ tandem client ═ TLS ═▶ foreign server          foreign client ═ TLS ═▶ tandem gateway ─▶ web origin
#
#   interop/tls.sh [CASE...]        TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"

cases=("$@")
[ ${#cases[@]} -gt 0 ] || cases=(get post bodies concurrent push reset cancel cut ping goaway leave settings many)

need openssl openssl
build_foreign spdystream web
build_tandem

# An authority and a certificate by it, in $CA, $CERT and $KEY; programs get them by name where they are to speak TLS.
certify() {
    local new=(openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
    ca=$work/ca.pem cert=$work/cert.pem key=$work/key.pem
    {
        "${new[@]}" -x509 -days 2 -subj '/CN=interop authority' -keyout "$work/ca.key" -out "$ca" &&
            "${new[@]}" -subj '/CN=interop' -keyout "$key" -out "$work/request.pem" &&
            openssl x509 -req -in "$work/request.pem" -CA "$ca" -CAkey "$work/ca.key" -CAcreateserial -days 2 \
                -extfile <(echo 'subjectAltName=IP:127.0.0.1') -out "$cert"
    } >"$work/openssl.log" 2>&1 || { cat "$work/openssl.log" >&2 && exit 1; }
}

# A browser's case through a client of its own, so that its sessions can be counted: browse LABEL VERSION SERVER CASE
browse() {
    local label=$1 version=$2 server=$3 case=$4 metrics
    start '^tandem client: listening on http://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" client --listen http://127.0.0.1:0 \
        --gateway "spdy$version+tls://$server?ca=$ca" --metrics 127.0.0.1:0
    metrics=$(sed -nE 's|^tandem: metrics on ||p' "$output")
    run "$label" "$work/web" browse "$address" "$metrics" "$case"
    stop "$pid"
}

# A gateway in front of the origin; its address in $address, its process in $pid.
gateway() {
    start '^tandem gateway: listening on spdy[0-9.+a-z]+://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" gateway --open \
        --listen "spdy$1+tls://127.0.0.1:0?cert=$cert&key=$key" --mode "reverse=http://$origin" --allow-host '*'
}

# A gateway that its client tells to end, in the midst of a session; both come to a good end: leave LABEL VERSION COMMAND...
leave() {
    local label=$1 version=$2 status=0
    shift 2
    gateway "$version"
    run "$label" env GATEWAY="$pid" "$@" "$address" leave
    timeout 120 tail --pid="$pid" -f /dev/null || stop "$pid"
    wait "$pid" || status=$?
    if [ "$status" -ne 0 ]; then
        echo "FAIL  $label: the gateway ended with status $status"
        failed=$((failed + 1))
    fi
}

certify
start "$own_address" "$work/web" origin
origin=$address

for peer in 'spdy-transport 3' 'spdy-transport 3.1' 'spdystream 3.1'; do
    version=${peer#* }
    case $peer in
    spdy-transport*) serve=("${transport[@]}" serve "$version") ask=("${transport[@]}" client "$version") ;;
    *) serve=("$work/spdystream" serve) ask=("$work/spdystream" client) ;;
    esac
    start "$own_address" env CERT="$cert" KEY="$key" "${serve[@]}"
    server=$address
    gateway "$version"
    gateway_address=$address
    for case in "${cases[@]}"; do
        case "$case $peer" in
        cut* | leave* | settings*) ;;
        # It announces every push as one of https, so that none is what a browser asks for here.
        'push spdy-transport'*) browse "$peer serves $case" "$version" "$server" push-of-https ;;
        *) browse "$peer serves $case" "$version" "$server" "$case" ;;
        esac
        case "$case $peer" in
        # A gateway resets nothing of its own accord, and spdystream's connections tell nothing of SETTINGS.
        reset* | cancel* | goaway* | 'settings spdystream'*) ;;
        leave*) leave "$peer asks leave" "$version" env CA="$ca" "${ask[@]}" ;;
        *) run "$peer asks $case" env CA="$ca" "${ask[@]}" "$gateway_address" "$case" ;;
        esac
    done
done
finish
