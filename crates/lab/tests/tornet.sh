#!/usr/bin/env bash
# A page through the private Tor network of the real tor: through both gateways, with curl and with headless Chromium; ten
# onion services, three with announced gateways; and nothing is left afterwards, also when the network's supervisor was
# killed. Needs root, and tor, chromium, curl, ip, iptables.
#
#   CARGO_TARGET_DIR  where it builds
set -u -o pipefail
cd "$(dirname "$0")/../../.." || exit 1

instance=test$$
prefix=tandem-$instance-
rundir=${XDG_RUNTIME_DIR:-/tmp}/tandem-tornet-$instance
programs=${CARGO_TARGET_DIR:-target}/release
scratch=$(mktemp -d)
jobs=()

fail() {
    echo "FAIL: $*"
    tail -n 20 "$scratch"/*.log 2>/dev/null
    exit 1
}

finish() {
    for pid in "${jobs[@]}"; do kill "$pid" 2>/dev/null; done
    "$programs/tandem-lab" tornet down --instance "$instance" >/dev/null 2>&1
    rm -rf "$scratch"
}
trap finish EXIT

up() {
    "$programs/tandem-lab" tornet up --instance "$instance" --plain-exits 1 --page gallery:20x2000 "$@" ||
        fail "the network did not come up"
}

# The value of one key of the network's status.
status() {
    "$programs/tandem-lab" tornet status --instance "$instance" --json |
        sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\).*/\1/p" | head -n 1
}

inside() {
    ip netns exec "${prefix}client" "$@"
}

# client PORT GATEWAY VIA: the near end of the pair.
client() {
    # Not by a function, whose process would be a shell's.
    ip netns exec "${prefix}client" "$programs/tandem" client --listen "http://127.0.0.1:$1" --gateway "$2" --via "$3" \
        >"$scratch/client-$1.log" 2>&1 &
    jobs+=($!)
    for _ in $(seq 300); do
        inside bash -c ": </dev/tcp/127.0.0.1/$1" 2>/dev/null && return
        sleep 0.1
    done
    fail "the client on port $1 does not listen"
}

# fetch WHAT PROXY URL: the document, within a few tries, since a first circuit may fail.
fetch() {
    local answer
    for _ in 1 2 3 4 5; do
        answer=$(inside curl -sS -m 60 -o "$scratch/body" -w '%{http_code} %{size_download}' -x "$2" "$3" 2>&1)
        [[ $answer == "200 "* ]] && grep -q '</html>' "$scratch/body" && echo "ok: curl, $1" && return
        echo "again: curl, $1: $answer $(head -c 300 "$scratch/body")"
        sleep 2
    done
    fail "curl, $1"
}

# browse WHAT PROXY URL: Chromium gets the document and its twenty images, as its own network log says.
browse() {
    local answers
    inside timeout 180 chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
        --disable-component-update --user-data-dir="$scratch/profile" --proxy-server="$2" --log-net-log="$scratch/net.json" \
        --virtual-time-budget=60000 --dump-dom "$3" >"$scratch/dom.html" 2>"$scratch/chromium.log" ||
        fail "chromium, $1: ended with an error"
    answers=$(grep -c '"HTTP/1.1 200' "$scratch/net.json")
    [ "$(grep -o '<img' "$scratch/dom.html" | wc -l)" -ge 20 ] && [ "$answers" -ge 21 ] ||
        fail "chromium, $1: $answers good answers of 21"
    rm -rf "$scratch/profile" "$scratch/net.json"
    echo "ok: chromium, $1"
}

nothing_left() {
    local left
    left=$(ip netns list | grep -F "$prefix"; ls -d "/etc/netns/$prefix"* "$rundir" 2>/dev/null
        grep -l -a -F "$rundir" /proc/[0-9]*/cmdline 2>/dev/null)
    [ -z "$left" ] || fail "left behind after $1: $left"
    echo "ok: nothing left after $1"
}

cargo build --release --locked -p tandem-cli -p tandem-lab --bins || exit 1

up --onions 10 --onion-gateways 3 --onion-page gallery:20x2000
onion=$(status onion)
# Ten sites, three with an announced gateway: which streams, which circuits, and no other packet of the client. No other
# client runs, whose streams would count.
"$programs/tandem-lab" tornet discover --instance "$instance" --check || fail "discovery of gateways"
echo "ok: discovery of gateways"
client 8118 "h2+tcp://192.0.2.80:9980?exit=auto" "tor://127.0.0.1:9051"
client 8119 "h2+tcp://$onion:9980" "socks5://127.0.0.1:9050"
fetch "tor alone" socks5h://127.0.0.1:9050 http://site1.test/
fetch "gateway at the exit" http://127.0.0.1:8118 http://site1.test/
fetch "gateway of the onion service" http://127.0.0.1:8119 "http://$onion/"
browse "gateway at the exit" http://127.0.0.1:8118 http://site1.test/
browse "gateway of the onion service" http://127.0.0.1:8119 "http://$onion/"

"$programs/tandem-lab" tornet down --instance "$instance" || fail "down"
for pid in "${jobs[@]}"; do
    # What ran in the network's namespaces went with them.
    kill -0 "$pid" 2>/dev/null && fail "process $pid survived its namespace"
done
jobs=()
nothing_left "down"

up
kill -9 "$(status pid)" || fail "no supervisor to kill"
sleep 1
# Its exit code says that the network is not up.
said=$("$programs/tandem-lab" tornet status --instance "$instance")
[[ $said == killed* ]] || fail "status of a killed network: $said"
"$programs/tandem-lab" tornet down --instance "$instance" || fail "down after a kill"
nothing_left "a killed supervisor"
