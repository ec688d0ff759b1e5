#!/usr/bin/env bash
# The client without a gateway, at servers of others that limit connections or end them after a few requests. The access
# logs count the requests: at most 2 % more than the page has, and no refusal.
#
#   node ─▶ tandem client --solo=direct ─▶ 60 ms ─▶ nginx, apache2
#
#   interop/solo.sh        TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"

PATH=$PATH:/usr/sbin
need node nodejs curl curl nginx nginx-light apache2 apache2-bin
build_tandem
visit=(node "$here/solo/visit.js")
requests=301
# The servers give up their rights, and must read the files.
chmod 755 "$work"
mkdir "$work/files"
"${visit[@]}" files "$work/files"

# A free port: free_port
free_port() {
    node -e 'const s = require("net").createServer(); s.listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close() })'
}

# Waits until a program listens: listening PORT
listening() {
    for _ in $(seq 200); do
        (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return
        sleep 0.05
    done
    echo "nothing listens on port $1" >&2
    exit 1
}

# Starts nginx with more directives for its server; its port in $port, its log in $log: nginx_with DIRECTIVES
nginx_with() {
    local temporary="" kind
    for kind in client_body proxy fastcgi uwsgi scgi; do temporary+="  ${kind}_temp_path $work/nginx-$kind;
"; done
    port=$(free_port)
    log=$work/nginx-$port.access
    cat >"$work/nginx.conf" <<CONFIGURATION
daemon off;
master_process off;
pid $work/nginx.pid;
events {}
http {
  log_format status '\$status';
  access_log $log status;
  limit_conn_zone \$binary_remote_addr zone=address:1m;
$temporary  server { listen 127.0.0.1:$port; root $work/files; $1 }
}
CONFIGURATION
    nginx -e "$work/nginx.log" -c "$work/nginx.conf" &
    server=$!
    listening "$port"
}

# Starts apache2 with more directives; its port in $port, its log in $log: apache_with DIRECTIVES
apache_with() {
    local modules=/usr/lib/apache2/modules
    port=$(free_port)
    log=$work/apache-$port.access
    cat >"$work/apache.conf" <<CONFIGURATION
ServerName interop
ServerRoot $work
PidFile $work/apache.pid
ErrorLog $work/apache.log
LoadModule mpm_event_module $modules/mod_mpm_event.so
LoadModule authz_core_module $modules/mod_authz_core.so
LoadModule mime_module $modules/mod_mime.so
TypesConfig /dev/null
AddType text/html .html
AddType image/png .png
Listen 127.0.0.1:$port
DocumentRoot $work/files
LogFormat "%>s" status
CustomLog $log status
$1
CONFIGURATION
    apache2 -f "$work/apache.conf" -DFOREGROUND 2>"$work/apache.start" &
    server=$!
    listening "$port"
}

# A metric of the client: metric NAME
metric() {
    curl -sS "http://$metrics/metrics" | sed -nE "s/^$1 ([0-9]+)$/\1/p"
}

# Loads the page, and holds the log against it: load LEAST_PIPELINED_REQUESTS
load() {
    local origin client server_log=$log relay_pid served refused repeated pipelined
    start "$own_address" "${visit[@]}" relay "$port"
    origin=$address relay_pid=$pid metrics=127.0.0.1:$(free_port)
    start '^tandem client: listening on http://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" client --solo=direct --solo-hold-out=0 \
        --solo-allow-dest "127.0.0.1/32:${origin##*:}" --metrics "$metrics" --listen http://127.0.0.1:0
    client=$pid
    "${visit[@]}" load "$address" "$origin" "$work/files" || return 1
    repeated=$(metric tandem_exchanges_retried_total) pipelined=$(metric tandem_origin_pipelined_total)
    stop "$client" "$relay_pid" "$server"
    served=$(wc -l <"$server_log") refused=$(grep -vc '^200$' "$server_log")
    echo "$served requests, $refused refused, $repeated repeated, $pipelined pipelined"
    [ "$served" -ge $requests ] && [ "$served" -le $((requests * 102 / 100)) ] && [ "$refused" -eq 0 ] &&
        [ "$repeated" -le $((requests * 2 / 100)) ] && [ "$pipelined" -ge "$1" ]
}

nginx_with ''
check 'nginx' load 60
nginx_with 'limit_conn address 6;'
check 'nginx, limit_conn 6' load 60
nginx_with 'limit_conn address 6; keepalive_requests 20;'
check 'nginx, limit_conn 6, keepalive_requests 20' load 60
nginx_with 'limit_conn address 6; keepalive_requests 5;'
check 'nginx, limit_conn 6, keepalive_requests 5' load 60
nginx_with 'limit_conn address 6; keepalive_requests 2;'
check 'nginx, limit_conn 6, keepalive_requests 2' load 0
apache_with ''
check 'apache2' load 60
apache_with 'MaxKeepAliveRequests 5'
check 'apache2, MaxKeepAliveRequests 5' load 10
finish
