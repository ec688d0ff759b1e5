#!/usr/bin/env bash
# A browser that speaks HTTP/2 to the client: the local authority of `tandem trust`, in Chromium, Firefox, curl and Python.
# Both browsers load a page of 100 images over the TLS listener and over the HTTP listener, as /proxy.pac names them.
#
#   chromium, firefox ═ HTTP/2 over TLS ═▶ tandem client ═▶ tandem gateway ─▶ origin
#
#   interop/browser.sh        TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"

need chromium chromium firefox-esr firefox-esr certutil libnss3-tools node nodejs openssl openssl curl curl python3 python3
build_tandem

# The delay of an image, and the images that are held until all of them are under way.
delay=300
hold=90

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

# browse BROWSER HOME PROXY URL: a browser on a page, until it is killed. The proxy is a URL, or pac:URL.
browse() {
    local proxy
    if [ "$1" = firefox ]; then
        copy_profile "$2"
        exec env HOME="$2" timeout 100 node "$here/browser/show.js" "$copy" "$3" "$4"
    fi
    case $3 in pac:*) proxy=--proxy-pac-url=${3#pac:} ;; *) proxy=--proxy-server=$3 ;; esac
    chrome "$2" "$proxy" --remote-debugging-port=0 "$4"
}

# load BROWSER HOME PROXY: loads the page, and leaves its time and the most images at once in $time and $most.
load() {
    local before line
    before=$(grep -c '^done' "$origin_output")
    browse "$1" "$2" "$3" http://site.test/ >"$work/browser.out" 2>&1 &
    local browser=$!
    for _ in $(seq 1800); do
        line=$(grep '^done' "$origin_output" | tail -n +$((before + 1)) | head -n 1)
        [ -n "$line" ] && break
        kill -0 "$browser" 2>/dev/null || break
        sleep 0.05
    done
    kill "$browser" 2>/dev/null
    wait "$browser" 2>/dev/null
    [ -n "$line" ] || { echo "the page did not load: $(tail -n 3 "$work/browser.out")" && return 1; }
    read -r _ time most <<<"$line"
}

# expect COUNT BROWSER HOME PROXY: the page loads with at least ("90+") or at most ("6-") this many images at once.
expect() {
    load "$2" "$3" "$4" || return 1
    case $1 in
    *+) [ "$most" -ge "${1%+}" ] ;;
    *-) [ "$most" -le "${1%-}" ] ;;
    esac || { echo "$most images at once, not $1" && return 1; }
}

# is_faster FAST SLOW: the first time is at most 0.35 of the second.
is_faster() {
    [ "$1" -gt 0 ] && [ $(($1 * 100)) -le $(($2 * 35)) ]
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
by_firefox() {
    copy_profile "$home"
    env HOME="$home" timeout 100 node "$here/browser/verdicts.js" firefox direct:// "$copy" "https://$1:$2/" >"$work/verdict"
    cat "$work/verdict"
    grep -q "text .* accepted" "$work/verdict"
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
make_profile "$stranger"
make_profile "$home"
lists() {
    certutil -L -d "sql:$1" 2>/dev/null | grep -q '^Tandem local authority'
}

check 'trust adds the authority' trust "$home"
check "Chromium's database lists it" lists "$home/.pki/nssdb"
check "Firefox's profile lists it" lists "$profile"
check 'trust can be repeated' trust "$home"
check 'the key is private' test "$(stat -c %a "$authority/authority.key" 2>/dev/null)" = 600

for browser in chromium firefox; do
    pair "$delay" "$hold"
    check "$browser has $hold images under way over the TLS listener" expect "$hold+" $browser "$home" "pac:$pac"
done
pair "$delay" 0
# The connections of each browser to a proxy of HTTP/1.1: Chromium's are for one host.
declare -A few=([chromium]=6 [firefox]=32)
for browser in chromium firefox; do
    check "$browser loads the page over the TLS listener" load $browser "$home" "pac:$pac"
    fast=${time:-0}
    check "$browser has at most ${few[$browser]} over the HTTP listener" expect ${few[$browser]}- $browser "$home" "$plain"
    slow=${time:-0}
    # Other load on the machine delays the start of a load. It delays the better of two less.
    if [ $browser = chromium ] && ! is_faster "$fast" "$slow"; then
        load $browser "$home" "pac:$pac" && [ "$time" -lt "$fast" ] && fast=$time
    fi
    echo "      $browser: 100 images of $delay ms: $fast ms over the TLS listener, $slow ms over the HTTP listener"
    # Firefox has 32 connections to a proxy of HTTP/1.1, and spreads its requests over a second (docs/src/browsers.md).
    [ $browser = firefox ] || check "$browser takes at most 0.35 of the time" is_faster "$fast" "$slow"
done
check 'chromium without the authority falls back to the HTTP listener' expect 6- chromium "$stranger" "pac:$pac"

leaf localhost DNS:localhost
leaf site.test DNS:site.test
start "$own_address" node "$here/browser/origin.js" https "$work/localhost.pem" "$work/localhost.key"
good=${address##*:}
start "$own_address" node "$here/browser/origin.js" https "$work/site.test.pem" "$work/site.test.key"
bad=${address##*:}
for program in chromium firefox curl python; do
    check "$program accepts the authority for localhost" "by_$program" localhost "$good"
    check "$program refuses the authority for another name" refuses "by_$program" site.test "$bad"
done

check 'firefox names the constraint' grep -q CERT_NOT_IN_NAME_SPACE "$work/verdict"

check 'trust --remove undoes it' trust "$home" --remove
check "Chromium's database no longer lists it" refuses lists "$home/.pki/nssdb"
check "Firefox's profile no longer lists it" refuses lists "$profile"
trust "$home" --authority "$authority" --remove >/dev/null
check 'no file of the authority is left' refuses test -e "$authority/trusted-by"
for browser in chromium firefox; do
    check "$browser uses the HTTP listener after the removal" expect ${few[$browser]}- $browser "$home" "pac:$pac"
done
finish
