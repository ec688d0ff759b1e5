#!/usr/bin/env bash
# Measures submissions in the simple mode over four pairs of protocols, as table 5.2 of the thesis about proxies does:
# the time to the answer of n requests, c at the same time, against HTTP/1.1 at both sides and a direct POST.
#
#   experiments/submissions.sh PROGRAM [N] [C] [DELAY_MS]
#
# PROGRAM is tandem with the feature submit. A process delays the bytes of each connection: the round trip between the
# client and the gateway is DELAY_MS, as is that between the gateway and the server, and a direct POST crosses both.
# It needs curl, nginx, openssl and python3.
set -eu -o pipefail
program=$(realpath "$1")
n=${2:-100} c=${3:-5} delay=${4:-40}
work=$(mktemp -d)
pids=()

finish() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT

# Each argument PORT:TARGET:MS is a listener on loopback, whose connections to TARGET have this delay in each direction.
cat >"$work/delay.py" <<'PYTHON'
import asyncio, sys

async def carry(reader, writer, delay):
    loop, queue = asyncio.get_running_loop(), asyncio.Queue()
    async def send():
        while True:
            at, data = await queue.get()
            await asyncio.sleep(max(0, at - loop.time()))
            if not data:
                return writer.close()
            writer.write(data)
            await writer.drain()
    sending = asyncio.create_task(send())
    try:
        while data := await reader.read(65536):
            queue.put_nowait((loop.time() + delay, data))
        queue.put_nowait((loop.time() + delay, b''))
        await sending
    except OSError:
        writer.close()

async def main():
    for argument in sys.argv[1:]:
        port, target, ms = map(int, argument.split(':'))
        async def accept(reader, writer, target=target, delay=ms / 1000):
            far_reader, far_writer = await asyncio.open_connection('127.0.0.1', target)
            await asyncio.gather(carry(reader, far_writer, delay), carry(far_reader, writer, delay))
        await asyncio.start_server(accept, '127.0.0.1', port)
    print('ready', flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
PYTHON
# The client reaches the server at 31443 and 32443, and the gateways at 311CS, for the protocols of client and server. The gateways reach the server at 41443
# and 42443.
half=$((delay / 2))
python3 "$work/delay.py" 31443:1443:"$delay" 32443:2443:"$delay" 41443:1443:"$half" 42443:2443:"$half" \
    31111:11443:"$half" 31112:12443:"$half" 31121:21443:"$half" 31122:22443:"$half" >"$work/ready" 2>"$work/delays.log" & pids+=($!)

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=ca -keyout "$work/ca.key" \
    -out "$work/ca.pem" 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=test -keyout "$work/tls.key" \
    -out "$work/tls.csr" 2>/dev/null
openssl x509 -req -in "$work/tls.csr" -CA "$work/ca.pem" -CAkey "$work/ca.key" -days 2 -out "$work/tls.pem" \
    -extfile <(echo 'subjectAltName=IP:127.0.0.1') 2>/dev/null
openssl genpkey -algorithm ed25519 -out "$work/key.pem"
token=token-of-the-experiment
printf '[[client]]\nname = "experiment"\ntoken-sha256 = "%s"\n' \
    "$(printf %s "$token" | sha256sum | cut -d' ' -f1)" >"$work/rights.toml"

# The server reads each body, and answers with 201 over HTTP/1.1 (port 1443) or HTTP/2 (port 2443).
cat >"$work/nginx.conf" <<NGINX
daemon off; pid $work/nginx.pid; error_log $work/nginx.log;
events { worker_connections 1024; }
http {
    access_log off; client_body_temp_path $work/body; keepalive_requests 100000;
    ssl_certificate $work/tls.pem; ssl_certificate_key $work/tls.key;
    server { listen 127.0.0.1:1443 ssl; location / { return 201 taken; } }
    server { listen 127.0.0.1:2443 ssl http2; location / { return 201 taken; } }
}
NGINX
chmod 755 "$work"
nginx -c "$work/nginx.conf" 2>/dev/null & pids+=($!)

head -c 2000 /dev/zero | tr '\0' x >"$work/body.txt"
# The configuration of curl for n requests with a key each.
requests() {
    local url=$1 number
    for number in $(seq "$n"); do
        [ "$number" = 1 ] || echo next
        key=$(printf '%s %s' "$url $RANDOM" "$number" | openssl dgst -sha256 -binary | basenc --base64url | tr -d =)
        printf '%s\n' "url = \"$url\"" "data-binary = \"@$work/body.txt\"" 'header = "content-type: text/plain"' \
            "header = \"authorization: Bearer $token\"" "header = \"idempotency-key: \\\"$key\\\"\"" \
            "cacert = \"$work/ca.pem\"" 'output = "/dev/null"' \
            'write-out = "%{time_total} %{http_code}\n"'
    done
}

# Prints the median and the 90th percentile of the times of requests, and the time of all. A response fits into one packet,
# so its first byte and its last byte arrive together.
measure() {
    local name=$1 url=$2 option=$3 from to
    requests "$url" >"$work/requests"
    from=$(date +%s%N)
    curl -sS --no-progress-meter "$option" -Z --parallel-max "$c" -K "$work/requests" >"$work/times"
    to=$(date +%s%N)
    awk '$2 != 201 { exit 1 }' "$work/times" || { echo "$name: a request failed" >&2; sort "$work/times" | tail -3 >&2; exit 1; }
    percentile() { cut -d' ' -f1 "$work/times" | sort -n | awk -v p="$1" '{ all[NR] = $1 } END { printf "%.1f", 1000 * all[int((NR - 1) * p) + 1] }'; }
    printf '%-24s median %7s ms   p90 %7s ms   all %6d ms\n' "$name" "$(percentile 0.5)" "$(percentile 0.9)" "$(((to - from) / 1000000))"
}

echo "n = $n, c = $c, round trip $delay ms at each side, bodies of 2000 bytes"
for port in 1 2; do
    "$program" gateway --workers 1 \
        --listen "http+tls://127.0.0.1:${port}1443?cert=$work/tls.pem&key=$work/tls.key" \
        --listen "h2+tls://127.0.0.1:${port}2443?cert=$work/tls.pem&key=$work/tls.key" \
        --mode "submit=https://127.0.0.1:4${port}443/" --origin-ca "$work/ca.pem" --allow-dest 127.0.0.0/8 \
        --submit-rights "$work/rights.toml" --submit-key "$work/key.pem" --submit-store "sqlite:$work/store$port" \
        >"$work/gateway$port.log" 2>&1 & pids+=($!)
done
for _ in $(seq 100); do
    [ -s "$work/ready" ] && grep -q 'listening on h2' "$work/gateway1.log" && grep -q 'listening on h2' "$work/gateway2.log" && break
    sleep 0.1
done
for round in 1 2 3; do
    echo "round $round"
    measure 'direct, HTTP/1.1' https://127.0.0.1:31443/a --http1.1
    measure 'direct, HTTP/2' https://127.0.0.1:32443/a --http2
    measure 'HTTP/1.1 and HTTP/1.1' https://127.0.0.1:31111/submissions/a --http1.1
    measure 'HTTP/1.1 and HTTP/2' https://127.0.0.1:31121/submissions/a --http1.1
    measure 'HTTP/2 and HTTP/1.1' https://127.0.0.1:31112/submissions/a --http2
    measure 'HTTP/2 and HTTP/2' https://127.0.0.1:31122/submissions/a --http2
done
