#!/usr/bin/env bash
# The dashboards of client and gateway in Chromium: a page load appears, by keyboard, dark and light and on a phone; axe-core
# finds nothing serious; and pages of other origins, also under another name of this machine, read nothing.
#
#   interop/dashboard.sh      TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"

need chromium chromium node nodejs npm npm
build_tandem
[ -d "$here/browser/node_modules/axe-core" ] || (cd "$here/browser" && npm ci --silent) || exit 1

start "$own_address" node "$here/browser/origin.js" page 20 0 max-age=600
origin=$address
start '^tandem gateway: listening on h2[+]tcp://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" gateway --open --hold-out 0 \
    --listen h2+tcp://127.0.0.1:0 --mode "reverse=http://$origin" --allow-host '*' --congestion '' \
    --cache private --admin 127.0.0.1:0 --control "$work/gateway-control"
start '^tandem client: listening on http://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" client --listen http://127.0.0.1:0 \
    --gateway "h2+tcp://$address" --admin 127.0.0.1:0 --control "$work/control"
proxy=$address client=$pid
timeout 300 node "$here/browser/dashboard.js" "$TANDEM" "$work/control" "$work/gateway-control" http://site.test/ \
    "http://$proxy" "$work/profile" "$here/browser/node_modules/axe-core/axe.min.js" "$client"
