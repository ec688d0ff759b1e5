#!/usr/bin/env bash
# A client that changes its network during downloads, in network namespaces: its addresses and its default route change. There
# is one client for each way. curl downloads a file that can be continued, and one that cannot. Needs root.
#
#                         ┌─ wifi ─┐
#   curl ─▶ tandem client ┤        ├ router ─▶ tandem gateway ─▶ nginx
#                         └─ lte ──┘
#
# The downloads last for about 16 s. Three seconds after all of them have begun, wifi is gone, and lte follows a second later.
# Four seconds after that, wifi is back and becomes the default, while the machine keeps its address on lte. The router drops
# the packets of one network that come by the other. All downloads must arrive whole, except those over TCP that cannot be
# continued. A tunnel over TCP must end, so that its program connects again. No packet may leave for another host.
#
#   interop/roam.sh [WAY...]        TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"

ways=("$@")
[ ${#ways[@]} -gt 0 ] || ways=(h3+quic h3+dtls http+dtls h2+tls)

[ "$(id -u)" -eq 0 ] || { echo "only root may create network namespaces" >&2 && exit 1; }
PATH=$PATH:/usr/sbin:/sbin need curl curl nginx nginx-light ip iproute2 tcpdump tcpdump openssl openssl
nginx=$(PATH=$PATH:/usr/sbin command -v nginx)
build_tandem

laptop=tandem-roam-$$-laptop router=tandem-roam-$$-router server=tandem-roam-$$-server
remove() {
    local name pids
    for name in "$laptop" "$router" "$server"; do
        # Programs of a job that is a shell outlast it.
        pids=$(ip netns pids "$name" 2>/dev/null)
        [ -z "$pids" ] || kill $pids 2>/dev/null
    done
    # An interrupt may come before a job has entered its namespace.
    # shellcheck disable=SC2046
    kill $(jobs -p) 2>/dev/null
    wait
    for name in "$laptop" "$router" "$server"; do ip netns del "$name" 2>/dev/null; done
    cleanup
}
trap remove EXIT

# await DESCRIPTION COMMAND...: until the command succeeds.
await() {
    local description=$1
    shift
    for _ in $(seq 400); do
        "$@" 2>/dev/null && return
        sleep 0.05
    done
    echo "$description" >&2
    logs >&2
    exit 1
}

# The messages of the programs.
logs() {
    local file
    for file in "$work"/nginx.log "$work"/tcpdump.log "$work"/*.error "$work"/tmp.*; do
        [ -s "$file" ] && echo "== ${file##*/}" && tail -n 20 "$file"
    done
}

# inside NAMESPACE COMMAND...
inside() { ip netns exec "$@"; }

# link NAMESPACE DEVICE ADDRESS NETWORK: a link to the router, which has the first address of the network.
link() {
    ip -n "$1" link add "$2" type veth peer name "$2" netns "$router" &&
        ip -n "$router" address add "$4.1/24" dev "$2" && ip -n "$router" link set "$2" up &&
        ip -n "$1" address add "$3/24" dev "$2" && ip -n "$1" link set "$2" up
}

# join DEVICE NETWORK: the laptop gets an address on this network, and sends by it from now on.
join() {
    ip -n "$laptop" link set "$1" up && ip -n "$laptop" address replace "$2.2/24" dev "$1" &&
        ip -n "$laptop" route replace default via "$2.1" src "$2.2"
}

# leave DEVICE: the laptop loses its address on this network.
leave() { ip -n "$laptop" address flush dev "$1" && ip -n "$laptop" link set "$1" down; }

prepare() {
    local name
    for name in "$laptop" "$router" "$server"; do
        ip netns add "$name" && ip -n "$name" link set lo up || return 1
        # Each new link would announce itself.
        inside "$name" sh -c 'for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 >"$file"; done'
    done
    link "$server" net 203.0.113.5 203.0.113 && ip -n "$server" route add default via 203.0.113.1 &&
        link "$laptop" wifi 192.0.2.2 192.0.2 && link "$laptop" lte 198.51.100.2 198.51.100 && leave lte &&
        join wifi 192.0.2 || return 1
    # The router takes packets only from the network to which their source belongs.
    inside "$router" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward
        for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 >"$file"; done'
}

# An origin with one file of 2 MB at 130 kB/s. Below /whole/, it has no validator and no ranges.
start_origin() {
    local kind temporary=''
    mkdir "$work/files" && head -c 2000000 /dev/urandom >"$work/files/file" && mkdir "$work/files/whole" &&
        cp "$work/files/file" "$work/files/whole/file" || exit 1
    for kind in client_body proxy fastcgi uwsgi scgi; do temporary+="  ${kind}_temp_path $work/nginx-$kind;
"; done
    cat >"$work/nginx.conf" <<CONFIGURATION
daemon off;
user root;
worker_processes 1;
pid $work/nginx.pid;
events {}
http {
$temporary
  access_log off;
  server {
    listen 203.0.113.5:80;
    root $work/files;
    limit_rate 130k;
    location /whole/ { etag off; max_ranges 0; add_header Last-Modified ""; }
  }
}
CONFIGURATION
    ip netns exec "$server" "$nginx" -e "$work/nginx.log" -c "$work/nginx.conf" &
    await 'nginx does not listen' listens
}

listens() { [ -n "$(inside "$server" ss --no-header --listening --tcp 'sport = :80')" ]; }

# download WAY PATH: through the client of this way. A prompt end with an error is better than a part of a file.
download() {
    inside "$laptop" curl --silent --show-error --fail --max-time 35 --noproxy '' --proxy "http://127.0.0.1:${ports[$1]}" \
        --output "$work/$1-${2//\//-}" "http://203.0.113.5$2"
}

# tunnel WAY: downloads the file through a CONNECT, and leaves curl's status.
tunnel() {
    inside "$laptop" curl --silent --show-error --fail --max-time 35 --noproxy '' --proxytunnel --proxy "http://127.0.0.1:${ports[$1]}" \
        --output "$work/$1-tunnel-file" http://203.0.113.5/whole/file
    echo $? >"$work/$1-tunnel"
}

# A tunnel goes on, or has ended before curl's time limit (28).
continued() { [ "$(cat "$work/$1-tunnel")" -eq 0 ] && cmp "$work/files/file" "$work/$1-tunnel-file"; }
ended() { ! grep -qxE '0|28' "$work/$1-tunnel"; }

arrived() { cmp "$work/files/file" "$work/$1-${2//\//-}"; }

prepare || { echo "the networks did not come up" >&2 && exit 1; }
make_certificate gw.example
start_origin
head -c 24 /dev/urandom | base64 >"$work/token"
chmod 600 "$work/token"
own="cert=$work/cert.pem&key=$work/key.pem"
start '^tandem gateway: listening on h3\+dtls://(.*)$' ip netns exec "$server" "$TANDEM" gateway \
    --auth "token-file=$work/token" --allow-dest 203.0.113.5:80 --listen "h3+quic://0.0.0.0:443?$own" --listen "h2+tls://0.0.0.0:443?$own" \
    --listen "http+dtls://0.0.0.0:4434?$own" --listen "h3+dtls://0.0.0.0:4433?$own"

# What the laptop sends elsewhere. Its own addresses are those of its programs among each other.
ip netns exec "$laptop" tcpdump -n -l -i any 'not host 203.0.113.5 and not net 127.0.0.0/8 and not arp' \
    >"$work/strays" 2>"$work/tcpdump.log" &

await 'tcpdump does not listen' grep -q listening "$work/tcpdump.log"

declare -A ports
port=8200
for way in "${ways[@]}"; do
    case $way in
        h3+dtls) at=4433 ;;
        http+dtls) at=4434 ;;
        *) at=443 ;;
    esac
    port=$((port + 1))
    start '^tandem client: listening on http://(.*)$' ip netns exec "$laptop" "$TANDEM" client --token-file "$work/token" \
        --listen "http://127.0.0.1:$port" --gateway "$way://gw.example:$at?ip=203.0.113.5&ca=$work/cert.pem"
    ports[$way]=$port
done

downloads=()
for way in "${ways[@]}"; do
    for path in /file /whole/file; do
        download "$way" "$path" 2>"$work/$way-${path//\//-}.error" &
        downloads+=($!)
    done
    tunnel "$way" 2>"$work/$way-tunnel.error" &
    downloads+=($!)
done
have_begun() {
    local way
    for way in "${ways[@]}"; do
        [ -s "$work/$way--file" ] && [ -s "$work/$way--whole-file" ] && [ -s "$work/$way-tunnel-file" ] || return
    done
}
await 'a download has not begun' have_begun
sleep 3
leave wifi
sleep 1
join lte 198.51.100
sleep 4
are_under_way() { [ -z "$(find "$work" -maxdepth 1 -name '*-file' -size +1990000c -print)" ]; }
check 'no download is over before the second change' are_under_way
join wifi 192.0.2
wait "${downloads[@]}"

for way in "${ways[@]}"; do
    check "$way continues a download in another network" arrived "$way" /file
    # A connection over TCP ends with its address.
    if [ "$way" = h2+tls ]; then
        check "$way ends a tunnel in another network" ended "$way"
    else
        check "$way keeps its session in another network" arrived "$way" /whole/file
        check "$way keeps a tunnel in another network" continued "$way"
    fi
done
nothing_strayed() { cat "$work/strays" && [ ! -s "$work/strays" ]; }
check 'the laptop sends to its gateway only' nothing_strayed
[ "$failed" -eq 0 ] || logs
finish
