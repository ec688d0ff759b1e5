#!/usr/bin/env bash
# bpftrace on a running gateway: it attaches to the USDT probes, which raises their semaphores, counts what passes with its
# values, and lets go. No restart and nothing switched on: the control socket only looks on. Needs root, and a kernel
# with uprobes and BPF.
#
#   interop/tracing.sh              TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"

need bpftrace bpftrace curl curl
build_tandem
# The probe's path in the tracer's program ends at a colon and is absolute.
TANDEM=$(realpath "$TANDEM")

fail() {
    echo "FAIL  bpftrace: $1"
    [ -f "$work/trace" ] && cat "$work/trace"
    exit 1
}
[ "$(id -u)" -eq 0 ] || fail "only root may attach tracers"

# Waits until so many tracers are attached to a probe.
tracers() {
    for _ in $(seq 300); do
        "$TANDEM" probe list origin.head --json --control "$work/control" | grep -q "\"tracers\": $1" && return
        sleep 0.1
    done
    fail "never attached: $1 tracers"
}

fetch() {
    curl -sS -o "$work/page" -x "http://$proxy" "$origin" || fail "no answer through the pair"
}

start '^tandem gateway: listening on h2\+tcp://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" gateway --listen h2+tcp://127.0.0.1:0 --open \
    --allow-dest 127.0.0.0/8 --control "$work/control" --metrics 127.0.0.1:0
gateway=$pid
# Its metrics are the origin.
origin=$(sed -nE 's|^tandem: metrics on ||p' "$output")
start '^tandem client: listening on http://(127\.0\.0\.1:[0-9]+)$' "$TANDEM" client --listen http://127.0.0.1:0 \
    --gateway "h2+tcp://$address"
proxy=$address

fetch
tracers 0
# The probes are those of every process of the program.
bpftrace -e "usdt:$TANDEM:tandem:origin_head /pid == $gateway/ { @heads = count(); @ns = min(arg0); }
    usdt:$TANDEM:tandem:queue_core /pid == $gateway/ { @streams[arg1] = count(); }" >"$work/trace" 2>&1 &
tracer=$!
tracers 1
for _ in 1 2 3; do fetch; done
kill -INT "$tracer"
wait "$tracer"
grep -q '^@heads: 3$' "$work/trace" || fail "not the three answers that passed"
# No answer comes sooner than after a microsecond.
least=$(sed -n 's/^@ns: //p' "$work/trace")
[ "${least:-0}" -gt 1000 ] || fail "not a time: $least"
grep -qE '^@streams\[[0-9]*[13579]\]: ' "$work/trace" || fail "no number of a client's stream"
tracers 0
fetch
echo "ok    bpftrace: three answers seen, the fastest after $least ns"
