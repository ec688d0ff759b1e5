#!/usr/bin/env bash
# The contexts of browsers, such as private windows, never share an HTTP/2 connection to a proxy. The client relies on this: the
# tunnels of one connection share what early requests in opened HTTPS have taught it.
#
#   chromium, firefox ═ HTTP/2 over TLS ═▶ a proxy of node, which tells the connections apart
#
#   interop/contexts.sh
. "$(dirname "$0")/common.sh"

need chromium chromium firefox-esr firefox-esr certutil libnss3-tools node nodejs openssl openssl

quietly() {
    "$@" >>"$work/openssl.log" 2>&1 || { tail -n 5 "$work/openssl.log" >&2 && exit 1; }
}
p256=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
quietly openssl req -x509 "${p256[@]}" -days 30 -subj '/CN=an authority' -keyout "$work/root.key" -out "$work/root.pem"
# certify NAME SAN
certify() {
    quietly openssl req "${p256[@]}" -subj "/CN=$1" -keyout "$work/$1.key" -out "$work/$1.csr"
    quietly openssl x509 -req -in "$work/$1.csr" -CA "$work/root.pem" -CAkey "$work/root.key" -CAcreateserial -days 10 \
        -extfile <(echo "subjectAltName=$2") -out "$work/$1.pem"
}
certify proxy IP:127.0.0.1
certify sites 'DNS:*.usual.test,DNS:*.other.test,DNS:*.first.test,DNS:*.second.test'

mkdir -p "$work/firefox"
quietly certutil -N -d "sql:$work/firefox" --empty-password
quietly certutil -A -t C,, -n authority -d "sql:$work/firefox" -i "$work/root.pem"

# connections BROWSER: leaves a line for each connection in $work/BROWSER.txt.
connections() {
    timeout 200 node "$here/browser/contexts.js" "$1" "$work/$1" "$work" >"$work/$1.txt" || { cat "$work/$1.txt" && return 1; }
}
# Returns whether no connection carries tunnels of two contexts. The context "usual" has two sites.
are_apart() {
    ! sed 's/other\.test/usual.test/g' "$work/$1.txt" | awk '{
        sites = 0
        for (i = 2; i <= NF; i++) { sub(/^[a-z]*\./, "", $i); if (!(NR " " $i in seen)) { seen[NR " " $i] = 1; sites++ } }
        if (sites > 1) print
    }' | grep .
}
# Returns whether no connection carries tunnels of two sites. Firefox does not keep the sites of tabs apart.
sites_are_apart() {
    ! grep -E '[.]usual[.]test.*[.]other[.]test|[.]other[.]test.*[.]usual[.]test' "$work/$1.txt"
}
# Returns whether the tunnels to two hosts of a site share a connection.
are_joined() {
    grep -E '(www|part)\.usual\.test (.* )?(www|part)\.usual\.test' "$work/$1.txt" || { cat "$work/$1.txt" && return 1; }
}
for browser in chromium firefox; do
    check "pages in three contexts load: $browser" connections $browser
    check "contexts share no connection to the proxy: $browser" are_apart $browser
    check "tunnels to two hosts of a page share one: $browser" are_joined $browser
    sed "s/^/      $browser: /" "$work/$browser.txt"
done
check "two sites in a tab share no connection: chromium" sites_are_apart chromium
finish
