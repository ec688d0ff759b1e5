# Of interop/*.sh: programs that are started and ended, and cases that are counted. Sourced, not run.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PATH=$PATH:/usr/local/go/bin
work=$(mktemp -d)
cleanup() {
    # The jobs of this shell only: nothing else is ended, whatever number it has by now.
    local job
    for job in $(jobs -p); do kill "$job" 2>/dev/null; done
    rm -rf "$work"
}
trap cleanup EXIT

failed=0
count=0
# The time limit of one case of `run`, in seconds.
limit=300

# need PROGRAM PACKAGE...: ends with what to install where one is missing.
need() {
    while [ $# -gt 0 ]; do
        command -v "$1" >/dev/null || { echo "$1 is missing: apt-get install $2" >&2 && exit 1; }
        shift 2
    done
}

# profile_of HOME: the profile of that home's Firefox.
profile_of() {
    find "$1" -path '*/firefox/*.default-esr/cert9.db' -printf '%h\n' -quit
}

# make_profile HOME: Firefox's profile as its first start makes it, in $profile.
make_profile() {
    env -u XDG_CONFIG_HOME HOME="$1" timeout 60 firefox-esr --headless --no-remote --screenshot "$work/first.png" about:blank \
        >>"$work/firefox.log" 2>&1
    profile=$(profile_of "$1")
    [ -n "$profile" ] || { echo 'Firefox made no profile:' && tail -n 5 "$work/firefox.log"; exit 1; } >&2
}

# copy_profile HOME: a new profile with the certificates of that home's Firefox, in $copy.
copy_profile() {
    local from
    from=$(profile_of "$1")
    copy=$(mktemp -d -p "$work")
    cp "$from"/{cert9.db,key4.db,pkcs11.txt} "$copy"
}

# trust HOME ARGUMENT...: the command with a home of its own. The system's store stays as it is.
trust() {
    local home=$1
    shift
    env -u XDG_DATA_HOME -u XDG_CONFIG_HOME HOME="$home" "$TANDEM" trust --yes --store chromium --store firefox "$@"
}

# Leaves what one example or program of ours is called, built unless PEER or TANDEM names it: build VARIABLE PATH ARGUMENT...
build() {
    local variable=$1 path=$2
    shift 2
    [ -n "${!variable:-}" ] && return
    (cd "$here/.." && cargo build --quiet --locked "$@") || exit 1
    printf -v "$variable" '%s' "${CARGO_TARGET_DIR:-$here/../target}/debug/$path"
}

# The program tandem, built as ci.sh builds it for other steps: with another choice of members or features, cargo would build
# the dependencies again.
build_tandem() {
    build TANDEM tandem --workspace --bins --features tandem-cli/submit
}

# A certificate for 127.0.0.1 or for NAME, with its key, in $work/cert.pem and $work/key.pem: make_certificate [NAME]
make_certificate() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=interop \
        -addext "subjectAltName=${1:+DNS:}${1:-IP:127.0.0.1}" -addext basicConstraints=critical,CA:FALSE \
        -keyout "$work/key.pem" -out "$work/cert.pem" 2>"$work/openssl.log" || { cat "$work/openssl.log" >&2 && exit 1; }
}

# aioquic, as a module of the programs in "${python[@]}".
install_aioquic() {
    need python3 python3 pip3 python3-pip
    pip3 install --quiet --disable-pip-version-check --root-user-action=ignore --target "$work/python" aioquic==1.2.0 >"$work/pip.log" 2>&1 ||
        { cat "$work/pip.log" && echo 'aioquic is missing: pip3 install aioquic==1.2.0'; exit 1; } >&2
    python=(env "PYTHONPATH=$work/python" python3)
}

# The program of quic-go, in $work/quic-go.
build_quic_go() {
    need go golang-go
    (cd "$here/quic-go" && go build -o "$work/quic-go" .) ||
        { echo "quic-go is missing: go mod download -C interop/quic-go -x" >&2 && exit 1; }
}

# The foreign programs: $work/spdystream, $work/web, and "${transport[@]}".
build_foreign() {
    need go golang-go node nodejs npm npm
    local program
    for program in "$@"; do
        (cd "$here/$program" && go build -o "$work/$program" .) || exit 1
    done
    [ -d "$here/spdy-transport/node_modules/spdy-transport" ] ||
        (cd "$here/spdy-transport" && npm ci --silent) || exit 1
    transport=(node "$here/spdy-transport/peer.js")
}

# Starts a program that goes on, waits for the first line that matches, and leaves its process in $pid, what stood in the
# pattern's group in $address, and all it writes in $output: start PATTERN COMMAND...
start() {
    local pattern=$1
    shift
    output=$(mktemp -p "$work")
    "$@" >"$output" 2>&1 &
    pid=$!
    for _ in $(seq 600); do
        address=$(sed -nE "s|$pattern|\1|p" "$output" | head -n 1)
        [ -n "$address" ] && return
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.05
    done
    echo "it did not start: $*" >&2
    cat "$output" >&2
    exit 1
}

# What servers of this directory write first.
own_address='^(127\.0\.0\.1:[0-9]+)$'

stop() {
    kill "$@" 2>/dev/null
    wait "$@" 2>/dev/null
}

# Runs one case: run LABEL COMMAND...
run() {
    local label=$1 said
    shift
    count=$((count + 1))
    if said=$(timeout "$limit" "$@" 2>&1); then
        echo "ok    $label"
    else
        echo "FAIL  $label: ${said:-killed after $limit s, or silent}"
        failed=$((failed + 1))
    fi
}

# check LABEL COMMAND...: as run, but in this shell, without a time limit.
check() {
    local label=$1 said
    shift
    count=$((count + 1))
    if "$@" >"$work/said" 2>&1; then
        echo "ok    $label"
    else
        said=$(tail -n 5 "$work/said")
        echo "FAIL  $label: $said"
        failed=$((failed + 1))
    fi
}

finish() {
    [ "$count" -gt 0 ] || { echo "no case has such a name" >&2 && exit 1; }
    echo "$((count - failed)) of $count cases hold"
    [ "$failed" -eq 0 ]
}
