#!/usr/bin/env bash
# The bridge with other people's programs at both ends, for HTTP/1.1 and HTTP/2 with and without TLS on each side: Node,
# curl and h2load in front, Node, nginx and nghttpd behind. The rows are those of table 4.1 and the cells beside them that
# these programs speak. One line for each case; fails if one does.
#
#   node, curl, h2load ═ front ═▶ tandem bridge ═ back ═▶ node, nginx, nghttpd
#
#   interop/bridge.sh [FRONT/BACK...]        TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"

need openssl openssl node nodejs curl curl h2load nghttp2-client nghttpd nghttp2-server
PATH=$PATH:/usr/sbin need nginx nginx-light
build_tandem
nginx=$(PATH=$PATH:/usr/sbin command -v nginx)
peer=(node "$here/bridge/peer.js")
protocols=(http http+tls h2+tcp h2+tls)
cases=(get head unmodified large post trailers hints cut together missing)

make_certificate
mkdir "$work/files"
head -c 1048576 /dev/urandom >"$work/files/large"
echo page >"$work/files/page"

# A free port: free_port
free_port() {
    node -e 'const s = require("net").createServer(); s.listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close() })'
}

# Waits until a program listens: listening PORT
listening() {
    for _ in $(seq 200); do
        (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return
        sleep 0.05
    done
    echo "nothing listens on port $1" >&2
    exit 1
}

# The other servers of files: nginx for all protocols, nghttpd for HTTP/2. Their addresses are in ${files[SERVER PROTOCOL]}.
declare -A files
serve_files() {
    local protocol port options listens="" temporary="" kind
    for protocol in "${protocols[@]}"; do
        port=$(free_port)
        files[nginx $protocol]=127.0.0.1:$port
        case $protocol in http) options="" ;; http+tls) options=" ssl" ;; h2+tcp) options=" http2" ;; *) options=" ssl http2" ;; esac
        listens+="  server { listen 127.0.0.1:$port$options; root $work/files;
    ssl_certificate $work/cert.pem; ssl_certificate_key $work/key.pem; }
"
    done
    for kind in client_body proxy fastcgi uwsgi scgi; do temporary+="  ${kind}_temp_path $work/nginx-$kind;
"; done
    cat >"$work/nginx.conf" <<CONFIGURATION
daemon off;
master_process off;
pid $work/nginx.pid;
events {}
http {
  access_log off;
$temporary$listens}
CONFIGURATION
    "$nginx" -e "$work/nginx.log" -c "$work/nginx.conf" &
    listening "$port"
    port=$(free_port)
    files[nghttpd h2+tcp]=127.0.0.1:$port
    nghttpd --no-tls -a 127.0.0.1 -d "$work/files" "$port" >"$work/nghttpd.log" 2>&1 &
    listening "$port"
    port=$(free_port)
    files[nghttpd h2+tls]=127.0.0.1:$port
    nghttpd -a 127.0.0.1 -d "$work/files" "$port" "$work/key.pem" "$work/cert.pem" >"$work/nghttpd-tls.log" 2>&1 &
    listening "$port"
}

# A bridge; its address in $address, its process in $pid: bridge FRONT ARGUMENT...
bridge() {
    local front=$1 tls=""
    shift
    case $front in *tls) tls="?cert=$work/cert.pem&key=$work/key.pem" ;; esac
    start '^tandem bridge: listening on [a-z0-9.+]+://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" bridge --open \
        --listen "$front://127.0.0.1:0$tls" "$@"
}

# The argument for one origin: to BACK ADDRESS
to() {
    case $1 in
    *tls) echo "--mode=reverse=$1://$2?ca=$work/cert.pem" ;;
    *) echo "--mode=reverse=$1://$2" ;;
    esac
}

# Leaves curl's call for a front in "${curl[@]}", and the scheme of its URLs in $scheme: curl_for FRONT
curl_for() {
    curl=(curl -sS --fail --max-time 60 --cacert "$work/cert.pem")
    scheme=http
    case $1 in
    http) curl+=(--http1.1) ;;
    http+tls) curl+=(--http1.1) scheme=https ;;
    h2+tcp) curl+=(--http2-prior-knowledge) ;;
    h2+tls) curl+=(--http2) scheme=https ;;
    esac
}

# curl gets a file as it is, by the protocol of the front: fetch FRONT ADDRESS FILE
fetch() {
    local version expected=1.1
    curl_for "$1"
    case $1 in h2*) expected=2 ;; esac
    version=$("${curl[@]}" -o "$work/got" -w '%{http_version}' "$scheme://$2/$3") || return 1
    [ "$version" = "$expected" ] || { echo "HTTP/$version instead of HTTP/$expected"; return 1; }
    cmp "$work/got" "$work/files/$3"
}

# curl uploads a mebibyte and gets it back: upload FRONT ADDRESS
upload() {
    curl_for "$1"
    "${curl[@]}" -o "$work/got" --data-binary "@$work/files/large" "$scheme://$2/echo" || return 1
    cmp "$work/got" "$work/files/large"
}

# h2load gets 2,000 responses, 100 at once: load FRONT ADDRESS
load() {
    local options=(-n2000 -c4 -m25) said
    curl_for "$1"
    case $1 in http*) options=(--h1 -n2000 -c100) ;; esac
    said=$(h2load "${options[@]}" "$scheme://$2/page" 2>&1)
    grep -q '^status codes: 2000 2xx' <<<"$said" || { echo "$said" | tail -n 8; return 1; }
}

# curl opens a tunnel through the bridge and sends a request in it: tunnel FRONT ADDRESS
tunnel() {
    curl_for "$1"
    "${curl[@]}" --http1.1 --proxytunnel --proxy "$scheme://$2" --proxy-cacert "$work/cert.pem" -o "$work/got" \
        "http://${files[nginx http]}/page" && cmp "$work/got" "$work/files/page"
}

cell() {
    local front=$1 back=$2 origin bridged server name
    start "$own_address" "${peer[@]}" origin "$back" "$work/cert.pem" "$work/key.pem"
    origin=$pid
    bridge "$front" "$(to "$back" "$address")" --allow-host '*'
    bridged=$pid
    for name in "${cases[@]}"; do
        run "$front/$back: node asks $name" "${peer[@]}" client "$front" "$address" "$name"
    done
    check "$front/$back: curl uploads" upload "$front" "$address"
    check "$front/$back: h2load of node" load "$front" "$address"
    stop "$bridged" "$origin"
    for server in nginx nghttpd; do
        [ -n "${files[$server $back]:-}" ] || continue
        bridge "$front" "$(to "$back" "${files[$server $back]}")" --allow-host '*'
        for name in page large; do
            check "$front/$back: curl gets $name of $server" fetch "$front" "$address" "$name"
        done
        check "$front/$back: h2load of $server" load "$front" "$address"
        stop "$pid"
    done
}

serve_files
for front in "${protocols[@]}"; do
    for back in "${protocols[@]}"; do
        [ $# -eq 0 ] || [[ " $* " == *" $front/$back "* ]] && cell "$front" "$back"
    done
done
if [ $# -eq 0 ]; then
    # curl 7.88 speaks HTTP/1.1 only to a proxy.
    for front in http http+tls; do
        bridge "$front" --allow-dest 127.0.0.0/8
        check "$front: curl opens a tunnel" tunnel "$front" "$address"
        stop "$pid"
    done
fi
finish
