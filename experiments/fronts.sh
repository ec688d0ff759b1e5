#!/usr/bin/env bash
# Measures the extra time that HTTP/2 costs towards h2load, beside HTTP/1.1: with a server that only sends fixed bytes,
# with nginx, and with `tandem bridge` before nginx. The first is the price of h2load and of the kernel alone, so that no
# proxy can have a lower one.
#
#   experiments/fronts.sh PROGRAM [PASSES]
#
# PROGRAM is a release build of tandem. All servers share a core and h2load has the other one, with real-time priority,
# so that other programs disturb less. It needs root, cc, h2load, nginx and python3.
set -eu -o pipefail
PATH=$PATH:/usr/sbin
program=$(realpath "$1")
passes=${2:-25}
work=$(mktemp -d)

finish() {
    local job
    for job in $(jobs -p); do kill "$job" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT

# The server of fixed bytes: fixed PORT IS_HTTP2. It answers each request of 25 bytes of body.
cat >"$work/fixed.c" <<'C'
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static struct { int length, greeted; unsigned char bytes[1 << 16]; } connections[1024];
static const char response[] = "HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 9\r\n\r\naccepted\n";

static int put(unsigned char *out, const char *bytes, int length, const unsigned char *stream) {
    memcpy(out, bytes, length);
    if (stream) memcpy(out + 5, stream, 4);
    return length;
}

/* Answers the requests in the input, and returns the bytes of input that are used. */
static int answer(int at, int is_h2, unsigned char *out, int *sent) {
    unsigned char *in = connections[at].bytes;
    int length = connections[at].length, used = 0;
    while (!is_h2) {
        unsigned char *end = memmem(in + used, length - used, "\r\n\r\n", 4);
        if (!end || end + 4 + 25 > in + length) return used;
        used = end + 4 + 25 - in;
        *sent += put(out + *sent, response, sizeof response - 1, 0);
    }
    if (!connections[at].greeted) {
        if (length < 24) return 0;
        used = 24, connections[at].greeted = 1;
        *sent += put(out, "\0\0\0\4\0\0\0\0\0" "\0\0\0\4\1\0\0\0\0", 18, 0);
    }
    while (length - used >= 9) {
        unsigned char *frame = in + used;
        int size = 9 + (frame[0] << 16 | frame[1] << 8 | frame[2]);
        if (length - used < size) break;
        if (frame[3] == 0 && frame[4] & 1) {
            *sent += put(out + *sent, "\0\0\1\1\4\0\0\0\0\x88", 10, frame + 5);
            *sent += put(out + *sent, "\0\0\11\0\1\0\0\0\0accepted\n", 18, frame + 5);
        }
        used += size;
    }
    return used;
}

int main(int count, char **arguments) {
    int one = 1, is_h2 = atoi(arguments[count - 1]), listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    signal(SIGPIPE, SIG_IGN);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 128)) return 1;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[64];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int ready = epoll_wait(poll, events, 64, -1);
        for (int i = 0; i < ready; i++) {
            int at = events[i].data.fd, sent = 0;
            unsigned char out[1 << 16];
            if (at == listener) {
                at = accept4(listener, 0, 0, SOCK_NONBLOCK);
                if (at < 0 || at >= 1024) continue;
                setsockopt(at, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                connections[at].length = connections[at].greeted = 0;
                event.data.fd = at;
                epoll_ctl(poll, EPOLL_CTL_ADD, at, &event);
                continue;
            }
            unsigned char *in = connections[at].bytes;
            int room = sizeof connections[at].bytes - connections[at].length;
            int got = recv(at, in + connections[at].length, room, 0);
            if (got <= 0) {
                if (got == 0 || errno != EAGAIN) close(at);
                continue;
            }
            connections[at].length += got;
            int used = answer(at, is_h2, out, &sent);
            connections[at].length -= used;
            memmove(in, in + used, connections[at].length);
            if (sent) send(at, out, sent, 0);
        }
    }
}
C
cc -O2 -Wall -o "$work/fixed" "$work/fixed.c"

cat >"$work/nginx.conf" <<CONFIGURATION
worker_processes 1;
daemon off;
error_log $work/nginx.log;
pid $work/nginx.pid;
events {}
http {
    access_log off;
    keepalive_requests 1000000;
    server { listen 127.0.0.1:18200; listen 127.0.0.1:18201 http2; location / { return 200 "accepted\n"; } }
}
CONFIGURATION
server() { chrt -r 1 taskset -c 0 "$@" >"$work/log" & }
server nginx -e "$work/nginx.log" -c "$work/nginx.conf"
server "$work/fixed" 18202 0
server "$work/fixed" 18203 1
server "$program" bridge --listen http+tcp://127.0.0.1:18204 --listen h2+tcp://127.0.0.1:18205 --open \
    --mode reverse=http://127.0.0.1:18200 --allow-host 127.0.0.1 --allow-dest 127.0.0.1/32 --workers 1
sleep 2
printf 'a=1&b=2&c=3&d=4&e=5&f=6&g' >"$work/body"

cat >"$work/turns.py" <<'PYTHON'
import re, statistics, subprocess, sys

passes, body = int(sys.argv[1]), sys.argv[2]
servers = [('fixed bytes', 18202, 18203), ('nginx', 18200, 18201), ('bridge', 18204, 18205)]

def ms(text):
    number, unit = re.fullmatch(r'([\d.]+)(us|ms|s)', text).groups()
    return float(number) * {'us': 1e-3, 'ms': 1, 's': 1e3}[unit]

def load(port, options, n, c):
    command = ['chrt', '-r', '2', 'taskset', '-c', '1', 'h2load', '-t1', '-d', body, f'-n{n}', f'-c{c}', *options]
    text = subprocess.run([*command, f'http://127.0.0.1:{port}/request'], capture_output=True, text=True).stdout
    assert f' {n} succeeded' in text, text
    mean = re.search(r'time to 1st byte:\s+\S+\s+\S+\s+(\S+)', text)[1]
    return ms(mean), ms(re.search(r'finished in (\S+),', text)[1])

print('medians in ms: first byte, all;  HTTP/1.1, HTTP/2, difference, ratio')
for n, c in (100, 10), (50, 5), (1, 1):
    times = {name: ([], []) for name, _, _ in servers}
    for turn in range(passes):
        for name, http1, h2 in servers if turn % 2 == 0 else servers[::-1]:
            for version in (0, 1) if turn % 2 == 0 else (1, 0):
                times[name][version].append(load((http1, h2)[version], ['--h1'][version:], n, c))
    for name, (http1, h2) in times.items():
        for at, figure in enumerate(('first byte', 'all')):
            pairs = [(one[at], other[at]) for one, other in zip(http1, h2)]
            one, other = (statistics.median(column) for column in zip(*pairs))
            difference = statistics.median(b - a for a, b in pairs)
            ratio = statistics.median(b / a for a, b in pairs)
            print(f'{n:>4},{c:>3} {name:12} {figure:11} {one:7.3f} {other:7.3f} {difference:7.3f} {ratio:6.2f}', flush=True)
PYTHON
python3 "$work/turns.py" "$passes" "$work/body"
