#!/usr/bin/env bash
# Firefox ESR beside Chromium, as their users meet the client: over its HTTP/1.1, HTTP/2 and SOCKS5 listeners, with plain HTTP
# and with HTTPS, unopened and opened. Each byte of a page is compared, and pushes must be used by both.
#
#   firefox, chromium ─▶ tandem client ─▶ tandem gateway ─▶ origins of node
#
#   interop/browsers.sh        TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"

need firefox-esr firefox-esr chromium chromium certutil libnss3-tools node nodejs openssl openssl
build_tandem

home=$work/home
mkdir -p "$home"
quietly() {
    "$@" >>"$work/set-up.log" 2>&1 || { tail -n 5 "$work/set-up.log" >&2 && exit 1; }
}

# The origins' certificate, by an authority of the public web for this run.
p256=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
quietly openssl req -x509 "${p256[@]}" -days 30 -subj '/CN=public root' -keyout "$work/root.key" -out "$work/root.pem"
quietly openssl req "${p256[@]}" -subj /CN=localhost -keyout "$work/good.key" -out "$work/good.csr"
quietly openssl x509 -req -in "$work/good.csr" -CA "$work/root.pem" -CAkey "$work/root.key" -CAcreateserial \
    -CAserial "$work/serial" -days 10 -extfile <(echo subjectAltName=DNS:localhost) -out "$work/good.pem"

make_profile "$home"
quietly trust "$home" --authority "$work/authority" --open-https localhost
for store in "$home/.pki/nssdb" "$profile"; do
    quietly certutil -A -t C,, -n public -d "sql:$store" -i "$work/root.pem"
done
ln -s "$profile" "$work/profile"

for browser in firefox chromium; do
    env -u XDG_DATA_HOME -u XDG_CONFIG_HOME HOME="$home" timeout 300 node "$here/browser/browsers.js" $browser "$TANDEM" "$work" |
        tee "$work/said"
    count=$((count + $(grep -cE '^(ok|FAIL) ' "$work/said")))
    failed=$((failed + $(grep -c '^FAIL ' "$work/said")))
    grep -q "cases of $browser hold" "$work/said" || failed=$((failed + 1))
done
finish
