#!/usr/bin/env bash
# Measures hits of the gateway's cache beside those of nginx, in turns on one core, for bodies of several sizes.
#
#   experiments/hits.sh PROGRAM... [-- PASSES [SIZES]]
#
# Each PROGRAM is a release build of tandem, so that two commits can take turns as well. SIZES are kB, such as 1,10,100.
# nginx runs with its cache in memory and sendfile, in three configurations:
#   plain   no other setting
#   files   open_file_cache
#   nopush  open_file_cache and tcp_nopush
# It prints medians: hits in a second, their ratio to nginx (plain) in the same pass, and the processor time of a hit in
# user and system mode. It needs root, nginx, python3 and wrk. All have real-time priority, so other programs wait.
set -eu -o pipefail
PATH=$PATH:/usr/sbin
programs=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    programs+=("$(realpath "$1")")
    shift
done
[ $# -eq 0 ] || shift
passes=${1:-7} sizes=${2:-1,10,32,64,100}
work=$(mktemp -d -p /dev/shm)
servers=()

finish() {
    local job
    for job in $(jobs -p); do kill "$job" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT

mkdir "$work/files"
for size in ${sizes//,/ }; do head -c "${size}000" /dev/urandom >"$work/files/$size"; done

# serve NAME LINES: starts nginx on the first core, with these lines of its configuration.
serve() {
    cat >"$work/$1.conf" <<CONFIGURATION
user root;
worker_processes 1;
daemon off;
error_log $work/$1.log;
pid $work/$1.pid;
events {}
http { access_log off; keepalive_requests 100000000; sendfile on; $2 }
CONFIGURATION
    chrt -r 1 taskset -c 0 nginx -e "$work/$1.log" -c "$work/$1.conf" &
}

# cache NAME PORT LINES: starts nginx with a cache.
cache() {
    serve "$1" "proxy_cache_path $work/$1 keys_zone=hits:10m; $3
        server { listen 127.0.0.1:$2; location / {
            proxy_pass http://127.0.0.1:18100; proxy_cache hits; proxy_cache_valid 1h; } }"
    servers+=("nginx-$1:$2:$!")
}

files='open_file_cache max=100 inactive=1h; open_file_cache_valid 1h;'
serve origin "server { listen 127.0.0.1:18100; root $work/files; expires 1h; }"
cache plain 18101 ''
cache files 18102 "$files"
cache nopush 18103 "$files tcp_nopush on;"
port=18103
for program in "${programs[@]}"; do
    port=$((port + 1))
    chrt -r 1 taskset -c 0 "$program" gateway --listen "http+tcp://127.0.0.1:$port" --mode reverse=http://127.0.0.1:18100 \
        --allow-host '*' --open --allow-dest 127.0.0.1/32 --cache shared --workers 1 --push=false >"$work/$port.log" &
    servers+=("tandem-$((port - 18103)):$port:$!")
done
sleep 2

cat >"$work/turns.py" <<'PYTHON'
import os, re, statistics, subprocess, sys

passes, sizes, servers = int(sys.argv[1]), sys.argv[2].split(','), [one.split(':') for one in sys.argv[3:]]

def used(pid):
    """The ticks of user and system time, and the ns on a core, of a process or of the worker of nginx."""
    children = open(f'/proc/{pid}/task/{pid}/children').read().split()
    workers = [one for one in children if 'worker' in open(f'/proc/{one}/cmdline').read()]
    sums = [0, 0, 0]
    for process in workers or [pid]:
        for thread in os.listdir(f'/proc/{process}/task'):
            at = f'/proc/{process}/task/{thread}'
            fields = open(f'{at}/stat').read().rsplit(')', 1)[1].split()
            ran = int(open(f'{at}/schedstat').read().split()[0])
            sums = [sum(pair) for pair in zip(sums, (int(fields[11]), int(fields[12]), ran))]
    return sums

print(f'{"kB":>4} {"server":14} {"hits/s":>8} {"ratio":>6} {"user us":>8} {"system us":>9}')
for size in sizes:
    results = {name: [] for name, _, _ in servers}
    for turn in range(passes):
        for name, port, pid in servers if turn % 2 == 0 else servers[::-1]:
            before = used(pid)
            command = ['chrt', '-r', '2', 'taskset', '-c', '1', 'wrk', '-t1', '-c32', '-d1', f'http://127.0.0.1:{port}/{size}']
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            hits = int(re.search(r'(\d+) requests in', text)[1])
            rate = float(re.search(r'Requests/sec:\s+([\d.]+)', text)[1])
            user, system, ran = (b - a for a, b in zip(before, used(pid)))
            # Ticks tell the shares, and the scheduler the exact sum.
            share = user / max(1, user + system)
            results[name].append((rate, share * ran / hits / 1e3, (1 - share) * ran / hits / 1e3))
    plain = results[servers[0][0]]
    for name, turns in results.items():
        rate, user, system = (statistics.median(column) for column in zip(*turns))
        ratio = statistics.median(one[0] / other[0] for one, other in zip(turns, plain))
        print(f'{size:>4} {name:14} {rate:8.0f} {ratio:6.2f} {user:8.1f} {system:9.1f}', flush=True)
PYTHON
python3 "$work/turns.py" "$passes" "$sizes" "${servers[@]}"
