#!/usr/bin/env bash
# Checks a release: checksums, the contents of the packages, that no maintainer script enables or starts a service, and the
# program with its example files. As root, dpkg also installs, upgrades, removes and purges the packages in a directory, and
# the gateway runs as in its container.
#
#   packaging/check.sh DIRECTORY         the directory that release.sh wrote
#
# It needs dpkg and python3; lintian and systemd-analyze check more where they are installed.
set -eu -o pipefail
dist=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "check.sh: $*" >&2
    exit 1
}

(cd "$dist" && sha256sum --quiet --strict --check SHA256SUMS)
[ "$(find "$dist" -type f ! -name 'SHA256SUMS*' | wc -l)" = "$(wc -l <"$dist/SHA256SUMS")" ] ||
    fail 'a file has no checksum'
python3 - "$dist"/*.cdx.json <<'PYTHON'
import json, sys
bill = json.load(open(sys.argv[1]))
names = {it["name"] for it in bill["components"]}
assert bill["bomFormat"] == "CycloneDX" and {"rustls", "tandem-http"} <= names, names
PYTHON

packages=("$dist"/tandem-{proxy,client,gateway,relay,issuer}_*.deb)
for package in "${packages[@]}"; do
    name=$(dpkg-deb -f "$package" Package)
    dpkg-deb -x "$package" "$work/root"
    mkdir -p "$work/control"
    dpkg-deb -e "$package" "$work/control/$name"
    # A service with the example file would be wrong, so only one that runs already is restarted.
    if cat "$work/control/$name"/{preinst,postinst} 2>/dev/null | grep -E '(invoke|systemctl) +(--[a-z]+ +)*(re)?start'; then
        fail "$name starts a service"
    fi
done
for file in usr/bin/tandem etc/tandem/{client,gateway,relay,issuer}.toml usr/lib/systemd/user/tandem-client.service \
    usr/share/bash-completion/completions/tandem usr/share/zsh/vendor-completions/_tandem \
    usr/share/fish/vendor_completions.d/tandem.fish usr/share/man/man1/tandem-{client,gateway,relay,issuer,open,top,init}.1.gz \
    usr/share/doc/tandem-{proxy,client,gateway,relay,issuer}/copyright; do
    [ -s "$work/root/$file" ] || fail "no package has /$file"
done
for role in client gateway relay issuer; do
    [ "$(cat "$work/control/tandem-$role/conffiles")" = "/etc/tandem/$role.toml" ] || fail "$role.toml is no conffile"
    [ -n "$(find "$work/root" -path "*/systemd/system/tandem-$role.service")" ] || fail "the unit of the $role is missing"
    # The accounts of an issuer are no part of the package.
    [ "$role" = issuer ] || "$work/root/usr/bin/tandem" check-config "$work/root/etc/tandem/$role.toml" >/dev/null
done
zcat "$work/root/usr/share/doc/tandem-proxy/third-party-licences.txt.gz" | grep -cE '(^|, )rustls ' >/dev/null ||
    fail 'the licences of the crates are missing'

# One page for the program, and one for each command that its help lists.
for name in $("$work/root/usr/bin/tandem" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z0-9-]\+\).*/\1/p'); do
    [ "$name" = help ] || [ -s "$work/root/usr/share/man/man1/tandem-$name.1.gz" ] || fail "tandem $name has no page"
done
if [ -z "${PREBUILT:-}" ] && grep -aF "$HOME/" "$work/root/usr/bin/tandem" >/dev/null; then
    fail 'the program names directories of this machine'
fi

if [ "$(id -u)" -eq 0 ]; then
    # Maintainer scripts run outside of the directory. DPKG_ROOT tells deb-systemd-helper of it, and the other programs
    # must not reach this machine's services.
    mkdir "$work/programs"
    for name in systemctl deb-systemd-invoke; do
        printf '#!/bin/sh\necho "%s $*" >>"%s"\n' "$name" "$work/calls" >"$work/programs/$name"
        chmod +x "$work/programs/$name"
    done
    PATH=$work/programs:$PATH
    installed=$work/installed
    mkdir -p "$installed/var/lib/dpkg/"{info,updates}
    : >"$installed/var/lib/dpkg/status"
    dpkg() { command dpkg --root="$installed" --force-script-chrootless --force-depends --log=/dev/null "$@" 2>&1; }
    dpkg -i "${packages[@]}" >"$work/log" || { cat "$work/log" && fail 'the packages cannot be installed'; }
    "$installed/usr/bin/tandem" --version
    if grep -wE 'start|restart|enable' "$work/calls" 2>/dev/null; then fail 'a service was started'; fi

    # The files of `tandem init` in the directory of the gateway's unit, as a user without rights like that of the service.
    # Such a user needs the credentials that docs/src/installation.md describes, and an error must say so.
    chmod 711 "$work"
    unit=$(find "$installed" -path '*/systemd/system/tandem-gateway.service')
    directory=$(sed -n 's/^WorkingDirectory=//p' "$unit")
    as_service() {
        (cd "$installed$directory" && INVOCATION_ID=check setpriv --reuid=65534 --regid=65534 --clear-groups \
            "$installed/usr/bin/tandem" check-config gateway.toml 2>&1)
    }
    cp "$installed/etc/tandem/gateway.toml" "$work/gateway.toml"
    "$installed/usr/bin/tandem" init own-gateway --to "$work/init" --address 127.0.0.1 --no-test >"$work/log" 2>&1 ||
        { cat "$work/log" && fail 'tandem init failed'; }
    for name in gateway.toml token cert.pem key.pem; do
        install -m 644 "$work/init/gateway/$name" "$installed/etc/tandem/"
    done
    as_service >"$work/log" || { cat "$work/log" && fail "the directory of the unit is not that of its files"; }
    chmod 600 "$installed/etc/tandem/token" "$installed/etc/tandem/key.pem"
    if as_service >"$work/log" || ! grep -q LoadCredential "$work/log"; then
        cat "$work/log"
        fail 'an error does not name LoadCredential'
    fi
    install -d -o 65534 -m 700 "$work/credentials"
    install -o 65534 -m 400 "$installed/etc/tandem/"{token,cert.pem,key.pem} "$work/credentials/"
    sed -i -E "s#(token-file=|cert=|key=)#\\1$work/credentials/#g" "$installed/etc/tandem/gateway.toml"
    as_service >"$work/log" || { cat "$work/log" && fail 'the service cannot use its credentials'; }
    rm "$installed/etc/tandem/"{token,cert.pem,key.pem}

    # The gateway as in the container: as its user, in a directory with the program, its libraries and the configuration, where
    # nobody can write.
    inside=$work/container
    mkdir -p "$inside/etc/tandem"
    install -D "$installed/usr/bin/tandem" "$inside/usr/bin/tandem"
    ldd "$inside/usr/bin/tandem" | grep -o '/[^ ]*' | xargs cp --parents --dereference --target-directory="$inside"
    install -o 65532 -m 400 "$work/init/gateway/"{gateway.toml,token,cert.pem,key.pem} "$inside/etc/tandem/"
    sed -i 's#127.0.0.1:443?#127.0.0.1:0?#' "$inside/etc/tandem/gateway.toml"
    unshare --mount sh -c 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" &&
        exec unshare --root="$1" --wd=/etc/tandem --setgid=65532 --setuid=65532 \
            /usr/bin/tandem gateway --config /etc/tandem/gateway.toml' sh "$inside" >"$work/log" 2>&1 &
    gateway=$!
    for _ in $(seq 100); do
        grep -q 'listening on' "$work/log" && break
        sleep 0.1
    done
    kill -TERM "$gateway" 2>/dev/null || true
    wait "$gateway" && grep -q 'listening on' "$work/log" || { cat "$work/log" && fail 'the gateway does not run as in the container'; }

    cp "$work/gateway.toml" "$installed/etc/tandem/gateway.toml"

    [ -z "$(find "$installed/etc/systemd" -name 'tandem*' 2>/dev/null)" ] || fail 'a service is enabled'
    echo '# edited' >>"$installed/etc/tandem/client.toml"
    dpkg -i "${packages[@]}" >"$work/log" || { cat "$work/log" && fail 'the packages cannot be upgraded'; }
    grep -q '^# edited' "$installed/etc/tandem/client.toml" || fail 'an upgrade replaced a conffile'
    dpkg -r tandem-client tandem-gateway tandem-relay tandem-issuer tandem-proxy >"$work/log" || { cat "$work/log" && fail 'removal failed'; }
    [ -e "$installed/etc/tandem/client.toml" ] || fail 'removal deleted a conffile'
    dpkg -P tandem-client tandem-gateway tandem-relay tandem-issuer tandem-proxy >"$work/log" || { cat "$work/log" && fail 'the purge failed'; }
    left=$(find "$installed" -name '*tandem*')
    [ -z "$left" ] || fail "the purge left $left"
fi

if command -v systemd-analyze >/dev/null && [ -x /usr/bin/tandem ]; then
    systemd-analyze verify --man=no "$work"/root/{usr/,}lib/systemd/system/tandem-*.service
fi
if command -v lintian >/dev/null; then
    lintian --fail-on error "${packages[@]}"
fi
echo 'The release passes.'
