#!/usr/bin/env bash
# HTTPS that the client opens: `[open]` in its file, the authority of `tandem trust -c FILE`, and Chromium, curl and Python as
# browsers. A listed host is served by the local authority. Each other certificate is the origin's own.
#
#   chromium ─▶ tandem client ─▶ tandem gateway ─▶ origins of node, for HTTP/2 and HTTP/1.1
#
#   interop/opened.sh         TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"

need chromium chromium certutil libnss3-tools node nodejs openssl openssl curl curl python3 python3
build TANDEM tandem -p tandem-cli

home=$work/home authority=$work/home/.local/share/tandem file=$work/client.toml
mkdir -p "$home"

# An authority of the public web for this run, and its certificates: certify NAME SAN EXTRA...
quietly() {
    "$@" >>"$work/openssl.log" 2>&1 || { tail -n 5 "$work/openssl.log" >&2 && exit 1; }
}
quietly openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '/CN=public root' \
    -keyout "$work/root.key" -out "$work/root.pem"
request() {
    quietly openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout "$work/$1.key" \
        -out "$work/$1.csr"
}
certify() {
    local name=$1 san=$2
    shift 2
    request "$name"
    quietly openssl x509 -req -in "$work/$name.csr" -CA "$work/root.pem" -CAkey "$work/root.key" -CAcreateserial \
        -CAserial "$work/serial" -extfile <(echo "subjectAltName=$san") -out "$work/$name.pem" "$@"
}
certify good DNS:localhost -days 10
certify expired DNS:localhost -days -1
certify wrong DNS:other.test -days 10
request alone
quietly openssl x509 -req -in "$work/alone.csr" -key "$work/alone.key" -days 10 \
    -extfile <(echo subjectAltName=DNS:localhost) -out "$work/alone.pem"

# site NAME KIND: an origin with this certificate; leaves its port in $port.
site() {
    start "$own_address" node "$here/browser/site.js" "$2" "$work/$1.pem" "$work/$1.key" "$work/root.pem"
    port=${address##*:}
}
site good h2 && h2=$port
site good http1 && http1=$port
site good client && asks=$port
site good h2 && unlisted=$port
site expired h2 && expired=$port
site wrong h2 && wrong=$port
site alone h2 && alone=$port

start '^tandem gateway: listening on h2[+]tcp://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" gateway --open \
    --listen h2+tcp://127.0.0.1:0 --allow-dest 127.0.0.0/8
cat >"$file" <<TOML
[client]
gateway = ["h2+tcp://$address"]
listen = ["http://127.0.0.1:0"]
authority = "$authority"

[open]
hosts = ["localhost", "www.site.test"]
ports = [$h2, $http1, $asks, $expired, $wrong, $alone]
ca = "$work/root.pem"
TOML

# trust ARGUMENT...: the command with a home of its own. The system's store stays as it is.
trust() {
    env -u XDG_DATA_HOME -u XDG_CONFIG_HOME HOME="$home" "$TANDEM" trust --yes --store chromium "$@"
}
refuses() {
    ! "$@"
}
names() {
    "$@" 2>&1 | grep -q "tandem trust -c FILE"
}
check 'the client names the remedy without an authority' names "$TANDEM" check-config "$file"
check 'trust issues the authority for the list' trust -c "$file"
check 'the authority is constrained to the list' bash -c "openssl x509 -in '$authority/authority.pem' -noout -ext \
    nameConstraints | grep -q 'DNS:www.site.test'"
check 'the key is private' test "$(stat -c %a "$authority/authority.key" 2>/dev/null)" = 600
check 'explain says that the host is opened' bash -c "'$TANDEM' explain -c '$file' https://localhost:$h2/ |
    grep -q 'opened on this machine'"

start '^tandem client: listening on http://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" client -c "$file"
proxy=http://$address

# The verdicts of three programs. Each prints the page if it accepts the certificate, and curl names the issuer: by_PROGRAM PORT
by_curl() {
    curl -sSv --proxy "$proxy" --noproxy '' --cacert "${trusted:-$authority/authority.pem}" "https://localhost:$1/"
}
chrome() {
    env -u XDG_DATA_HOME HOME="$home" timeout 100 chromium --headless --no-sandbox --disable-gpu --no-first-run \
        --disable-background-networking --disable-component-update --disable-dev-shm-usage \
        --user-data-dir="$(mktemp -d -p "$work")" --proxy-server="$proxy" --proxy-bypass-list='<-loopback>' \
        "$@" 2>>"$work/chromium.log"
}
by_chromium() {
    chrome --dump-dom "https://localhost:$1/"
}
by_python() {
    python3 - "$proxy" "$1" "${trusted:-$authority/authority.pem}" <<'PYTHON'
import http.client, ssl, sys
from urllib.parse import urlsplit
proxy, port, authority = sys.argv[1:]
to = urlsplit(proxy)
context = ssl.create_default_context(cafile=authority)
context.set_alpn_protocols(["http/1.1"])
connection = http.client.HTTPSConnection(to.hostname, to.port, context=context, timeout=20)
connection.set_tunnel("localhost", int(port))
connection.request("GET", "/")
print(connection.getresponse().read().decode())
PYTHON
}
# sees PROGRAM PORT TEXT: the program's output holds the text.
sees() {
    local seen
    seen=$("by_$1" "$2" 2>&1)
    grep -qF -- "$3" <<<"$seen" || { echo "$seen" | tail -n 5 && return 1; }
}

check 'curl sees the local authority' sees curl "$h2" 'Tandem local authority'
check 'curl is served over HTTP/2' sees curl "$h2" 'served over 2.0'
check 'curl is served over HTTP/1.1 by such an origin' sees curl "$http1" 'served over 1.1'
check 'python accepts the local authority' sees python "$http1" 'served over 1.1'
check 'chromium loads the page over HTTP/2' sees chromium "$h2" 'served over 2.0'
check 'chromium loads the page over HTTP/1.1' sees chromium "$http1" 'served over 1.1'
check 'chromium opens a WebSocket' sees chromium "$http1" 'socket echoes'
check 'chromium opens a WebSocket beside HTTP/2' sees chromium "$h2" 'socket echoes'
# From here on, Chromium trusts the public root too: its verdict is then about the fault alone.
certutil -A -t C,, -n public -d "sql:$home/.pki/nssdb" -i "$work/root.pem"
for fault in expired wrong alone; do
    check "curl refuses the certificate: $fault" refuses sees curl "${!fault}" 'served over'
    check "python refuses the certificate: $fault" refuses sees python "${!fault}" 'served over'
    check "chromium refuses the certificate: $fault" refuses sees chromium "${!fault}" 'served over'
done
trusted=$work/root.pem
check 'curl sees the certificate of an unlisted port' sees curl "$unlisted" 'public root'
check 'curl sees the certificate of a site that asks for one' sees curl "$asks" 'public root'
check 'chromium loads an unlisted port' sees chromium "$unlisted" 'served over 2.0'

# A certificate by the local authority for a host outside the list.
issuer=$authority/authority
quietly openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -keyout "$work/x.key" -out "$work/x.csr"
for host in www.site.test other.test; do
    quietly openssl x509 -req -in "$work/x.csr" -CA "$issuer.pem" -CAkey "$issuer.key" -CAcreateserial \
        -CAserial "$work/serial" -days 2 -extfile <(echo "subjectAltName=DNS:$host") -out "$work/x.pem"
    cp "$work/x.pem" "$work/$host.pem" && cp "$work/x.key" "$work/$host.key"
    site "$host" http1
    declare "port_${host%%.*}=$port"
done
by_name() {
    case $1 in
    curl) curl -sS --noproxy '*' --cacert "$issuer.pem" --resolve "$2:$3:127.0.0.1" "https://$2:$3/" ;;
    chromium) proxy=direct:// chrome --host-resolver-rules="MAP $2 127.0.0.1" --dump-dom "https://$2:$3/" ;;
    esac
}
accepts() {
    by_name "$@" | grep -q 'served over'
}
for program in curl chromium; do
    check "$program accepts the authority for a listed host" accepts "$program" www.site.test "$port_www"
    check "$program refuses the authority for another host" refuses accepts "$program" other.test "$port_other"
done
finish
