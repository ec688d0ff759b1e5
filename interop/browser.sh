#!/usr/bin/env bash
# A browser that speaks HTTP/2 to the client: the local authority of `tandem trust`, in Chromium, curl and Python. Chromium
# loads a page of 100 images over the TLS listener and over the HTTP listener, as /proxy.pac names them.
#
#   chromium ═ HTTP/2 over TLS ═▶ tandem client ═▶ tandem gateway ─▶ origin
#
#   interop/browser.sh        TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"

need chromium chromium certutil libnss3-tools node nodejs openssl openssl curl curl python3 python3
build TANDEM tandem -p tandem-cli

# The delay of an image, and the images that are held until all of them are under way.
delay=300
hold=90

# trust HOME ARGUMENT...: the command with a home of its own. The system's store stays as it is.
trust() {
    local home=$1
    shift
    env -u XDG_DATA_HOME -u XDG_CONFIG_HOME HOME="$home" "$TANDEM" trust --yes --store chromium --store firefox "$@"
}

# The origin with its delay and hold, and the pair in front of it; leaves $origin_output, $pac and $plain.
pair() {
    start "$own_address" node "$here/browser/origin.js" page "$1" "$2"
    local origin=$address
    origin_output=$output
    start '^tandem gateway: listening on h2[+]tcp://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" gateway --open --push=false \
        --listen h2+tcp://127.0.0.1:0 --mode "reverse=http://$origin" --allow-host '*' --max-connections-per-origin 128
    start '^tandem client: listening on http://(127\.0\.0\.2:[0-9]+)$' "$TANDEM" client --push=false \
        --authority "$home/.local/share/tandem" --listen h2+tls://127.0.0.1:0 --listen http://127.0.0.2:0 \
        --gateway "h2+tcp://$address"
    pac=http://$address/proxy.pac plain=http://$address
}

# chrome HOME ARGUMENT...: Chromium without a window and without traffic of its own.
chrome() {
    local home=$1
    shift
    # The profile is new, so that no run finds another's connections or cache.
    env -u XDG_DATA_HOME HOME="$home" timeout 100 chromium --headless --no-sandbox --disable-gpu --no-first-run \
        --disable-background-networking --disable-component-update --disable-dev-shm-usage \
        --user-data-dir="$(mktemp -d -p "$work")" "$@" 2>>"$work/chromium.log"
}

# load HOME PROXY-ARGUMENT: loads the page, and leaves its time and the most images at once in $time and $most.
load() {
    local before line
    before=$(grep -c '^done' "$origin_output")
    chrome "$1" "$2" --remote-debugging-port=0 http://site.test/ >"$work/chromium.out" &
    local browser=$!
    for _ in $(seq 1800); do
        line=$(grep '^done' "$origin_output" | tail -n +$((before + 1)) | head -n 1)
        [ -n "$line" ] && break
        kill -0 "$browser" 2>/dev/null || break
        sleep 0.05
    done
    kill "$browser" 2>/dev/null
    wait "$browser" 2>/dev/null
    [ -n "$line" ] || { echo "the page did not load: $(tail -n 3 "$work/chromium.log")" && return 1; }
    read -r _ time most <<<"$line"
}

# expect COUNT HOME PROXY-ARGUMENT: the page loads with at least ("90+") or at most ("6-") this many images at once.
expect() {
    load "$2" "$3" || return 1
    case $1 in
    *+) [ "$most" -ge "${1%+}" ] ;;
    *-) [ "$most" -le "${1%-}" ] ;;
    esac || { echo "$most images at once, not $1" && return 1; }
}

# leaf NAME SAN: a certificate for the name by the local authority, in $work/NAME.pem and .key.
leaf() {
    {
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout "$work/$1.key" \
            -out "$work/$1.csr" &&
            openssl x509 -req -in "$work/$1.csr" -CA "$authority/authority.pem" -CAkey "$authority/authority.key" \
                -CAcreateserial -CAserial "$work/serial" -days 2 -extfile <(echo "subjectAltName=$2") -out "$work/$1.pem"
    } >"$work/openssl.log" 2>&1 || { cat "$work/openssl.log" >&2 && exit 1; }
}

# The verdicts of three programs on a server's certificate: verdict NAME PORT
by_chromium() {
    chrome "$home" --host-resolver-rules="MAP site.test 127.0.0.1" --dump-dom "https://$1:$2/" | grep -q accepted
}
by_curl() {
    curl -sS --noproxy '*' --cacert "$authority/authority.pem" --resolve "$1:$2:127.0.0.1" "https://$1:$2/" |
        grep -q accepted
}
by_python() {
    python3 - "$1" "$2" "$authority/authority.pem" <<'PYTHON'
import socket, ssl, sys
name, port, authority = sys.argv[1:]
context = ssl.create_default_context(cafile=authority)
with socket.create_connection(("127.0.0.1", int(port)), timeout=20) as plain:
    with context.wrap_socket(plain, server_hostname=name):
        pass
PYTHON
}
refuses() {
    ! "$@"
}

home=$work/home stranger=$work/stranger authority=$work/home/.local/share/tandem
mkdir -p "$home" "$stranger"
lists() {
    certutil -L -d "sql:$home/.pki/nssdb" 2>/dev/null | grep -q '^Tandem local authority'
}

check 'trust adds the authority' trust "$home"
check 'the database lists it' lists
check 'trust can be repeated' trust "$home"
check 'the key is private' test "$(stat -c %a "$authority/authority.key" 2>/dev/null)" = 600

pair "$delay" "$hold"
check "Chromium has $hold images under way over the TLS listener" expect "$hold+" "$home" --proxy-pac-url="$pac"
pair "$delay" 0
check 'Chromium loads the page over the TLS listener' load "$home" --proxy-pac-url="$pac"
fast=${time:-0}
check 'Chromium has at most six over the HTTP listener' expect 6- "$home" --proxy-server="$plain"
slow=${time:-0}
check 'Chromium without the authority falls back to the HTTP listener' expect 6- "$stranger" --proxy-pac-url="$pac"
echo "      100 images of $delay ms: $fast ms over the TLS listener, $slow ms over the HTTP listener"

leaf localhost DNS:localhost
leaf site.test DNS:site.test
start "$own_address" node "$here/browser/origin.js" https "$work/localhost.pem" "$work/localhost.key"
good=${address##*:}
start "$own_address" node "$here/browser/origin.js" https "$work/site.test.pem" "$work/site.test.key"
bad=${address##*:}
for program in chromium curl python; do
    check "$program accepts the authority for localhost" "by_$program" localhost "$good"
    check "$program refuses the authority for another name" refuses "by_$program" site.test "$bad"
done

check 'trust --remove undoes it' trust "$home" --remove
check 'the database no longer lists it' refuses lists
trust "$home" --authority "$authority" --remove >/dev/null
check 'no file of the authority is left' refuses test -e "$authority/trusted-by"
check 'Chromium falls back after the removal' expect 6- "$home" --proxy-pac-url="$pac"
finish
