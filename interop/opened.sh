#!/usr/bin/env bash
# HTTPS that the client opens: `[open]` in its file, the authority of `tandem trust -c FILE`, and Chromium, Firefox, curl
# and Python as browsers. A listed host is served by the local authority. Each other certificate is the origin's own. The verdict about a
# broken certificate is the same without opening, opened on this machine, and opened at the gateway.
#
#   chromium, firefox ─▶ tandem client ─▶ tandem gateway ─▶ origins of node, for HTTP/2 and HTTP/1.1
#
#   interop/opened.sh         TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"

need chromium chromium firefox-esr firefox-esr certutil libnss3-tools node nodejs openssl openssl curl curl python3 python3
build_tandem

home=$work/home authority=$work/home/.local/share/tandem
mkdir -p "$home"

# An authority of the public web for this run, another one, and an intermediate that is constrained to another host.
quietly() {
    "$@" >>"$work/openssl.log" 2>&1 || { tail -n 5 "$work/openssl.log" >&2 && exit 1; }
}
p256=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
for name in root stranger; do
    quietly openssl req -x509 "${p256[@]}" -days 30 -subj "/CN=public $name" -keyout "$work/$name.key" -out "$work/$name.pem"
done
# sign NAME BY EXTENSIONS ARGUMENT...: the certificate of a request.
sign() {
    local name=$1 by=$2 extensions=$3
    shift 3
    quietly openssl x509 -req -in "$work/$name.csr" -CA "$work/$by.pem" -CAkey "$work/$by.key" -CAcreateserial \
        -CAserial "$work/serial" -extfile <(printf "$extensions") -out "$work/$name.pem" "$@"
}
# certify NAME SAN ARGUMENT...: a certificate of $by, for a key of $key.
certify() {
    quietly openssl req "${key[@]}" -subj "/CN=$1" -keyout "$work/$1.key" -out "$work/$1.csr"
    sign "$1" "$by" "subjectAltName=$2" "${@:3}"
}
by=root key=("${p256[@]}")
certify good DNS:localhost -days 10
certify numeric IP:127.0.0.1 -days 10
certify revoked DNS:localhost -days 10
certify expired DNS:localhost -days -1
certify wrong DNS:other.test -days 10
certify sha1 DNS:localhost -days 10 -sha1
key=(-newkey rsa:1024 -nodes)
certify short DNS:localhost -days 10
key=("${p256[@]}") by=stranger
certify unknown DNS:localhost -days 10
quietly openssl req "${p256[@]}" -subj /CN=between -keyout "$work/between.key" -out "$work/between.csr"
sign between root 'basicConstraints=critical,CA:TRUE\nnameConstraints=critical,permitted;DNS:other.test' -days 10
by=between
certify constrained DNS:localhost -days 10
cat "$work/between.pem" >>"$work/constrained.pem"
quietly openssl req -x509 "${p256[@]}" -days 10 -subj /CN=alone -addext subjectAltName=DNS:localhost \
    -addext basicConstraints=CA:FALSE -keyout "$work/alone.key" -out "$work/alone.pem"
# The response of a responder that has revoked the certificate.
number=$(openssl x509 -in "$work/revoked.pem" -noout -serial)
printf 'R\t301231235959Z\t260101000000Z\t%s\tunknown\t/CN=revoked\n' "${number#serial=}" >"$work/index"
quietly openssl ocsp -index "$work/index" -CA "$work/root.pem" -issuer "$work/root.pem" -rsigner "$work/root.pem" \
    -rkey "$work/root.key" -cert "$work/revoked.pem" -no_nonce -ndays 5 -respout "$work/revoked.ocsp"

# The broken certificates by the name of their port.
faults=(expired wrong alone unknown constrained sha1 short)
start '^ports (.*)$' node "$here/browser/site.js" "$work" good:h2 good:http1 good:client good:h2 numeric:h2 revoked:revoked \
    good:page good:part good:part good:part expired:h2 wrong:h2 alone:h2 unknown:h2 constrained:h2 sha1:weak short:weak
read -r h2 http1 asks unlisted numeric revoked page part other elsewhere expired wrong alone unknown constrained sha1 short \
    <<<"$address"
listed="$h2, $http1, $asks, $numeric, $revoked, $page, $part, $other"
for fault in "${faults[@]}"; do listed+=", ${!fault}"; done

# The gateway belongs to the user, and one client goes through it for each level: client LEVEL [OPEN...]
echo a-token-of-some-length >"$work/token"
start '^tandem gateway: listening on h2[+]tcp://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" gateway --hold-out 0 --open-https \
    --auth "token-file=$work/token" --origin-ca "$work/root.pem" --listen h2+tcp://127.0.0.1:0 --allow-dest 127.0.0.0/8
gateway=$address
configure() {
    cat >"$work/$1.toml" <<TOML
[client]
gateway = ["h2+tcp://$gateway?own=yes"]
token-file = "$work/token"
listen = ["http://127.0.0.1:0"]
authority = "$authority"
cache-status = true
$2
TOML
}
hosts='["localhost", "www.site.test"]'
configure unopened ''
configure local "[open]
hosts = $hosts
ports = [$listed]
ca = \"$work/root.pem\""
configure gateway "[open]
at-gateway = $hosts
ports = [$listed]"

refuses() {
    ! "$@"
}
names() {
    "$@" 2>&1 | grep -q "tandem trust -c FILE"
}
check 'the client names the remedy without an authority' names "$TANDEM" check-config "$work/local.toml"
make_profile "$home"
check 'trust issues the authority for the list' trust "$home" -c "$work/local.toml"
check 'the authority is constrained to the list' bash -c "openssl x509 -in '$authority/authority.pem' -noout -ext \
    nameConstraints | grep -q 'DNS:www.site.test'"
check 'the key is private' test "$(stat -c %a "$authority/authority.key" 2>/dev/null)" = 600
for level in local gateway; do
    check "explain says that the host is opened: $level" bash -c "'$TANDEM' explain -c '$work/$level.toml' \
        https://localhost:$h2/ | grep -q 'opened on this machine'"
done
# Programs trust the public root too. Each verdict is then about the fault alone.
for store in "$home/.pki/nssdb" "$profile"; do certutil -A -t C,, -n public -d "sql:$store" -i "$work/root.pem"; done
cat "$authority/authority.pem" "$work/root.pem" >"$work/trusted.pem"

# A certificate by the local authority for a listed host, and one for a host outside the list.
cp "$authority/authority.pem" "$work/authority.pem" && cp "$authority/authority.key" "$work/authority.key"
by=authority
certify www.site.test DNS:www.site.test -days 2
certify other.test DNS:other.test -days 2
start '^ports (.*)$' node "$here/browser/site.js" "$work" www.site.test:http1 other.test:http1
read -r by_local beyond <<<"$address"

# Each program writes a line for each URL: its port, and the verdict. by_PROGRAM PROXY PORT...
by_curl() {
    local port proxy=$1
    shift
    for port; do
        curl -sS -o "$work/page" --proxy "$proxy" --noproxy '' --cacert "$work/trusted.pem" "https://localhost:$port/" \
            2>"$work/error" && echo "$port loaded" || echo "$port $(head -n 1 "$work/error")"
    done
}
by_python() {
    python3 - "$work/trusted.pem" "$@" <<'PYTHON'
import http.client, ssl, sys
from urllib.parse import urlsplit
authorities, proxy, *ports = sys.argv[1:]
to = urlsplit(proxy)
context = ssl.create_default_context(cafile=authorities)
context.set_alpn_protocols(["http/1.1"])
for port in ports:
    connection = http.client.HTTPSConnection(to.hostname, to.port, context=context, timeout=60)
    connection.set_tunnel("localhost", int(port))
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
        print(port, "loaded")
    except ssl.SSLError as error:
        print(port, getattr(error, "verify_message", error.reason))
PYTHON
}
# by_browser BROWSER NAME PROXY URL...: leaves what verdicts.js writes in $work/BROWSER-NAME.
by_browser() {
    copy_profile "$home"
    [ "$1" = firefox ] || copy=$work/profile-$2
    env -u XDG_DATA_HOME HOME="$home" timeout 110 node "$here/browser/verdicts.js" "$1" "$3" "$copy" "${@:4}" \
        >"$work/$1-$2" 2>>"$work/browser.log"
}
has() {
    grep -qE -- "$2" "$work/$1" || { cat "$work/$1" && return 1; }
}
# verdict_of NAME URL ERROR
verdict_of() {
    has "$1" "verdict $2 $3"
}
# verdict NAME PORT ERROR
verdict() {
    verdict_of "$1" "https://localhost:$2/" "$3"
}
# says NAME PORT TEXT
says() {
    has "$1" "text https://localhost:$2/ $3"
}
# issued NAME URL ISSUER: the page came with a certificate of this authority.
issued() {
    has "$1" "response $2 200 issuer=$3"
}

broken=()
for fault in "${faults[@]}"; do broken+=("${!fault}"); done
for level in unopened local gateway; do
    start '^tandem client: listening on (http://127\.0\.0\.1:[0-9]+)$' "$TANDEM" client -c "$work/$level.toml"
    proxy=$address
    urls=()
    for port in "$h2" "$http1" "$revoked" "$asks" "$unlisted" "${broken[@]}"; do urls+=("https://localhost:$port/"); done
    # The second connection to a host whose certificate failed goes another way.
    for program in curl python; do
        for _ in 1 2; do "by_$program" "$proxy" "$h2" "$http1" "$revoked" "$asks" "${broken[@]}"; done >"$work/$program-$level"
    done
    case $level in unopened) by='public root' ;; *) by='Tandem local authority' ;; esac
    for browser in chromium firefox; do
        by_browser $browser "$level" "$proxy" "https://localhost:$page/" "${urls[@]}" "https://127.0.0.1:$numeric/"
        seen=$browser-$level
        check "a page over HTTP/2: $seen" says "$seen" "$h2" 'served over 2.0 socket echoes'
        check "a page over HTTP/1.1: $seen" says "$seen" "$http1" 'served over 1.1 socket echoes'
        check "the authority of HTTP/2: $seen" issued "$seen" "https://localhost:$h2/" "$by"
        check "the authority of HTTP/1.1: $seen" issued "$seen" "https://localhost:$http1/" "$by"
        check "an unlisted origin's own certificate: $seen" issued "$seen" "https://localhost:$unlisted/" 'public root'
        check "the certificate of an origin that asks for one: $seen" issued "$seen" "https://localhost:$asks/" 'public root'
        check "the certificate of an address without SNI: $seen" issued "$seen" "https://127.0.0.1:$numeric/" 'public root'
        check "a page of several origins: $seen" says "$seen" "$page" \
            'a page of many origins with a part with a part with a part'
        check "the authority of another origin: $seen" issued "$seen" "https://localhost:$other/part.js" "$by"
        check "an unlisted origin's own certificate in a page: $seen" issued "$seen" "https://localhost:$elsewhere/part.js" \
            'public root'
    done
done
for at in "$part" "$other"; do
    check 'chromium gets a pushed part of a listed origin' has chromium-gateway "localhost:$at/part.js 200 .*detail=pushed"
done
# Browsers heed revocation that the origin staples, and accept a short key of an authority that was added. curl and Python
# ignore the former and refuse the latter.
declare -A errors=([expired]=DATE_INVALID [wrong]=COMMON_NAME_INVALID [alone]=AUTHORITY_INVALID [unknown]=AUTHORITY_INVALID
    [constrained]=INVALID [sha1]=INVALID [revoked]=REVOKED)
# The expired certificate ends before it begins.
declare -A codes=([expired]=INVALID_TIME [wrong]=BAD_CERT_DOMAIN [alone]=SELF_SIGNED_CERT [unknown]=UNKNOWN_ISSUER
    [constrained]=CERT_NOT_IN_NAME_SPACE [sha1]=CERT_SIGNATURE_ALGORITHM_DISABLED [revoked]=REVOKED_CERTIFICATE)
for level in unopened local gateway; do
    for fault in "${!errors[@]}"; do
        check "chromium refuses the certificate: $fault, $level" verdict "chromium-$level" "${!fault}" \
            "net::ERR_CERT_${errors[$fault]}"
    done
    for fault in "${!codes[@]}"; do
        check "firefox refuses the certificate: $fault, $level" verdict "firefox-$level" "${!fault}" \
            "[A-Z_]*ERROR_${codes[$fault]}"
    done
    for fault in "${faults[@]}"; do
        for program in curl python; do
            check "$program refuses the certificate: $fault, $level" refuses has "$program-$level" "${!fault} loaded"
        done
    done
done
for level in local gateway; do
    for program in curl python; do
        check "$program has the same verdicts as without opening: $level" diff "$work/$program-unopened" "$work/$program-$level"
    done
    for browser in chromium firefox; do
        check "$browser has the same verdicts as without opening: $level" diff <(grep ^verdict "$work/$browser-unopened") \
            <(grep ^verdict "$work/$browser-$level")
    done
done

# The local authority has no say about other hosts.
for browser in chromium firefox; do
    by_browser $browser direct direct:// "https://www.site.test:$by_local/" "https://other.test:$beyond/"
done
for browser in chromium firefox; do
    check "$browser accepts the authority for a listed host" verdict_of $browser-direct "https://www.site.test:$by_local/" loaded
done
check 'chromium refuses the authority for another host' verdict_of chromium-direct "https://other.test:$beyond/" net::ERR_CERT
check 'firefox refuses the authority for another host' verdict_of firefox-direct "https://other.test:$beyond/" \
    SEC_ERROR_CERT_NOT_IN_NAME_SPACE
curl_resolved() {
    curl -sS -o "$work/page" --noproxy '*' --cacert "$authority/authority.pem" --resolve "$1:$2:127.0.0.1" "https://$1:$2/"
}
check 'curl accepts the authority for a listed host' curl_resolved www.site.test "$by_local"
check 'curl refuses the authority for another host' refuses curl_resolved other.test "$beyond"
python_resolved() {
    python3 - "$1" "$2" "$authority/authority.pem" <<'PYTHON'
import socket, ssl, sys
name, port, authority = sys.argv[1:]
context = ssl.create_default_context(cafile=authority)
with socket.create_connection(("127.0.0.1", int(port)), timeout=20) as plain:
    context.wrap_socket(plain, server_hostname=name).close()
PYTHON
}
check 'python accepts the authority for a listed host' python_resolved www.site.test "$by_local"
check 'python refuses the authority for another host' refuses python_resolved other.test "$beyond"
finish
