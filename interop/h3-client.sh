#!/usr/bin/env bash
# The client with HTTP/3 servers of other people as its gateway: the package http3 of quic-go, and aioquic, which pushes.
# They know nothing of the pair's own requests, and answer them with 404. One line for each case; fails if one does.
#
#   node, curl ═ HTTP/1.1 ═▶ tandem client ═ HTTP/3 over QUIC ═▶ quic-go, aioquic
#
#   interop/h3-client.sh [CASE...]        TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"
limit=60

need openssl openssl node nodejs curl curl
install_aioquic
build_quic_go
build_tandem
make_certificate

# Runs the cases that were asked for: through SERVER CASES COMMAND...
wanted=$*
through() {
    local name
    start "$own_address" "${@:3}"
    start '^tandem client: listening on http://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" client --listen http://127.0.0.1:0 \
        --gateway "h3+quic://$address?ca=$work/cert.pem"
    for name in $2; do
        [ -z "$wanted" ] || [[ " $wanted " == *" $name "* ]] || continue
        run "$1 serves $name" node "$here/bridge/peer.js" client proxy "$address" "$name"
    done
}

common='get head unmodified large post trailers hints cut together missing fields'
through aioquic "$common push" "${python[@]}" "$here/h3/server.py" "$work/cert.pem" "$work/key.pem"
through quic-go "$common leave" "$work/quic-go" server "$work/cert.pem" "$work/key.pem"
if [ -z "$wanted" ]; then
    proxy=$address
    start "$own_address" node "$here/bridge/peer.js" origin http
    run 'quic-go serves a tunnel' curl -sS --fail --max-time 60 --proxytunnel --proxy "http://$proxy" \
        -o "$work/got" "http://$address/page"
fi
finish
