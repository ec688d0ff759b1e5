#!/usr/bin/env bash
# Runs h2spec against `tandem gateway`, over TCP and over TLS.
#
#   h2spec ═ HTTP/2 ═▶ tandem gateway ─▶ web origin
#
# h2spec tests RFC 7540. Two of its 145 cases ask for stream dependencies, which RFC 9113 section 5.3.2 has dropped; these two
# and no others may fail.
#
#   interop/h2spec.sh        TANDEM=path uses a program that is built already, H2SPEC=path an h2spec that is installed
. "$(dirname "$0")/common.sh"

need go golang-go openssl openssl
(cd "$here/web" && go build -o "$work/web" .) || exit 1
if [ -z "${H2SPEC:-}" ]; then
    GOBIN=$work go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible || exit 1
    H2SPEC=$work/h2spec
fi
build_tandem

allowed='× 1: Sends HEADERS frame that depend on itself
× 2: Sends PRIORITY frame that depend on itself'

# Fails unless the failures of a report are the allowed ones, out of 145 cases: judge REPORT
judge() {
    local failures
    grep -q '^145 tests, 143 passed, 0 skipped, 2 failed$' "$1" || { sed -n '/^Failures/,$p' "$1" && return 1; }
    failures=$(sed -n '/^Failures/,$p' "$1" | grep -o '× .*')
    [ "$failures" = "$allowed" ] || { echo "other cases failed: $failures" && return 1; }
}

# spec ADDRESS OPTION...: runs all cases.
spec() {
    local address=$1
    shift
    "$H2SPEC" -h "${address%:*}" -p "${address##*:}" -P /bytes/1000 -o 2 "$@" >"$work/report" 2>&1
    judge "$work/report"
}

# A gateway in front of the origin, and h2spec against it: check LABEL LISTEN OPTION...
check() {
    local label=$1 listen=$2
    shift 2
    start '^tandem gateway: listening on h2\+[a-z]+://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" gateway --open --listen "$listen" \
        --mode "reverse=http://$origin" --allow-host '*'
    count=$((count + 1))
    if said=$(spec "$address" "$@"); then
        echo "ok    h2spec over $label: 143 of 145, as RFC 9113 asks"
    else
        echo "FAIL  h2spec over $label: $said"
        failed=$((failed + 1))
    fi
    stop "$pid"
}

start "$own_address" "$work/web" origin
origin=$address
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=interop \
    -addext subjectAltName=IP:127.0.0.1 -keyout "$work/key.pem" -out "$work/cert.pem" 2>"$work/openssl.log" || exit 1
check TCP h2+tcp://127.0.0.1:0
check TLS "h2+tls://127.0.0.1:0?cert=$work/cert.pem&key=$work/key.pem" -t -k
finish
