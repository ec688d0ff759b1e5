#!/usr/bin/env bash
# `tandem trust` and the system's store. It runs in a namespace of its own, over copies of the store, so that this machine's
# store stays as it is: curl then accepts the client's listener without further options. The question is asked through a
# terminal (script), and without one nothing is changed.
#
#   interop/trust.sh      TANDEM=path uses a program that is built already
. "$(dirname "$0")/common.sh"

need curl curl unshare util-linux update-ca-certificates ca-certificates script bsdutils
build_tandem
export TANDEM
anchors=/usr/local/share/ca-certificates

# The state of the machine's store, as a checksum.
store_state() {
    find "$anchors" /etc/ssl/certs \( -type f -o -type l \) -printf '%p %l %T@\n' | sort | sha256sum
}

if [ -z "${IN_NAMESPACE:-}" ]; then
    before=$(store_state)
    IN_NAMESPACE=1 unshare --user --map-root-user --mount "$0"
    status=$?
    [ "$(store_state)" = "$before" ] || { echo 'FAIL  the store of this machine has changed' && status=1; }
    exit $status
fi

mkdir -p "$work/anchors" "$work/hooks" "$work/home"
cp -a /etc/ssl/certs "$work/certs"
mount --bind "$work/anchors" "$anchors" && mount --bind "$work/certs" /etc/ssl/certs || exit 1
[ ! -d /etc/ca-certificates/update.d ] || mount --bind "$work/hooks" /etc/ca-certificates/update.d || exit 1
authority=$work/home/.local/share/tandem
system() {
    env -u XDG_DATA_HOME -u XDG_CONFIG_HOME HOME="$work/home" "$TANDEM" trust --store system "$@"
}

# Each answer through a terminal; the end of the input is none.
ask() {
    local answer=$1
    shift
    printf '%s' "$answer" | env -u XDG_DATA_HOME -u XDG_CONFIG_HOME HOME="$work/home" \
        script --quiet --return --command "$TANDEM trust --store system $*" /dev/null
}
is_untouched() {
    [ ! -e "$authority" ] && [ -z "$(ls -A "$work/anchors")" ]
}
refuses_without_a_terminal() {
    ! system </dev/null >"$work/out" 2>&1 && grep -q 'no terminal for the question: add --yes' "$work/out" && is_untouched
}
refuses_the_answer() {
    ! ask "$1" >"$work/out" && grep -q 'Continue? \[y/N\]' "$work/out" && grep -q 'nothing was changed' "$work/out" && is_untouched
}
accepts_the_answer() {
    ask "$1" >"$work/out" || { cat "$work/out" && return 1; }
    grep -q 'Continue? \[y/N\]' "$work/out" && grep -q 'added to' "$work/out" &&
        [ "$(stat -c %a "$authority/authority.key")" = 600 ] && [ -s "$anchors/tandem-local-authority.crt" ]
}
keeps_at_no() {
    ! ask "$1" --remove >"$work/out" && [ -e "$authority/authority.key" ] && [ -s "$anchors/tandem-local-authority.crt" ]
}

check 'nothing is changed without a terminal' refuses_without_a_terminal
check 'nothing is changed after n' refuses_the_answer $'n\n'
check 'nothing is changed after an empty line' refuses_the_answer $'\n'
check 'y adds the authority to the store of the system' accepts_the_answer $'y\n'

start '^tandem client: listening on h2[+]tls://(127\.0\.0\.1:[0-9]+)$' env HOME="$work/home" "$TANDEM" client \
    --listen h2+tls://127.0.0.1:0 --authority "$authority" --gateway h2+tcp://127.0.0.1:1 --preconnect=false
# 60: the certificate was not accepted. No option names a certificate.
status_of_curl() {
    curl --silent --output /dev/null "https://$address/proxy.pac"
    echo $?
}
is_accepted() {
    [ "$(status_of_curl)" != 60 ]
}
is_refused() {
    [ "$(status_of_curl)" = 60 ]
}
check 'curl accepts the listener by the store of the system' is_accepted
check 'the authority stays after n to its removal' keeps_at_no $'n\n'
check 'the removal succeeds' system --remove --yes
check 'the store has no copy afterwards' test ! -e "$anchors/tandem-local-authority.crt"
check 'curl refuses the listener afterwards' is_refused
check 'a removal of this store alone leaves the authority' test -e "$authority/authority.key"
finish
