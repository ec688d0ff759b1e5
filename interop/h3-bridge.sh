#!/usr/bin/env bash
# The bridge with HTTP/3 of other people at its ends: the package http3 of quic-go as client, origin and proxy, and aioquic
# as origin. Node has the ends with HTTP/1.1 and HTTP/2. One line for each case; fails if one does.
#
#   quic-go, node, curl ═ front ═▶ tandem bridge ═ back ═▶ quic-go, aioquic, node
#
#   interop/h3-bridge.sh [CLIENT/FRONT/BACK/SERVER...]        TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"
limit=60

need openssl openssl node nodejs curl curl
install_aioquic
build_quic_go
build_tandem
make_certificate
common='get head unmodified large post trailers hints cut together missing'

# A bridge; its address in $address, its process in $pid: bridge FRONT ARGUMENT...
bridge() {
    local tls=""
    case $1 in *tls | *quic) tls="?cert=$work/cert.pem&key=$work/key.pem" ;; esac
    start '^tandem bridge: listening on [a-z0-9.+]+://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" bridge --open \
        --listen "$1://127.0.0.1:0$tls" "${@:2}"
}

# The endpoint of a server behind the bridge: endpoint BACK ADDRESS
endpoint() {
    case $1 in
    *tls | *quic) echo "$1://$2?ca=$work/cert.pem" ;;
    *) echo "$1://$2" ;;
    esac
}

# Starts a server: serve SERVER BACK
serve() {
    case $1 in
    quic-go) start "$own_address" "$work/quic-go" server "$work/cert.pem" "$work/key.pem" ;;
    aioquic) start "$own_address" "${python[@]}" "$here/h3/server.py" "$work/cert.pem" "$work/key.pem" ;;
    # It validates addresses by Retry packets first.
    aioquic-retry) start "$own_address" "${python[@]}" "$here/h3/server.py" "$work/cert.pem" "$work/key.pem" retry ;;
    node) start "$own_address" node "$here/bridge/peer.js" origin "$2" "$work/cert.pem" "$work/key.pem" ;;
    esac
}

wanted=$*
cell() {
    local label=$1/$2/$3/$4 client=$1 front=$2 back=$3 server=$4 origin name
    [ -z "$wanted" ] || [[ " $wanted " == *" $label "* ]] || return
    serve "$server" "$back"
    origin=$pid
    bridge "$front" --mode "reverse=$(endpoint "$back" "$address")" --allow-host '*'
    for name in $5; do
        case $client in
        quic-go) run "$label: $name" "$work/quic-go" client "$address" "$work/cert.pem" "$name" ;;
        node) run "$label: $name" node "$here/bridge/peer.js" client "$front" "$address" "$name" ;;
        esac
    done
    stop "$pid" "$origin"
}

# A proxy behind the bridge opens the tunnels.
proxy() {
    local server
    serve quic-go h3+quic
    server=$(endpoint h3+quic "$address")
    bridge h3+quic --mode "proxy=$server"
    run "quic-go/h3+quic/h3+quic/quic-go: tunnel" "$work/quic-go" client "$address" "$work/cert.pem" tunnel
    bridge http --mode "proxy=$server"
    server=$address
    serve node http
    run "curl/http/h3+quic/quic-go: tunnel" curl -sS --fail --max-time 60 --proxytunnel --proxy "http://$server" \
        -o "$work/got" "http://$address/page"
}

cell quic-go h3+quic h3+quic quic-go "$common via fields load unread leave websocket"
cell quic-go h3+quic h3+quic aioquic "$common fields load"
cell quic-go h3+quic http node "$common via fields load websocket"
cell quic-go h3+quic h2+tls node "$common fields load"
cell node http h3+quic quic-go "$common fields leave websocket"
cell node h2+tls h3+quic quic-go "$common fields load unread leave"
cell node h2+tls h3+quic aioquic "$common fields load"
cell node http h3+quic aioquic-retry 'get post'
[ -n "$wanted" ] || proxy
finish
