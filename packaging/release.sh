#!/usr/bin/env bash
# Builds a release of the committed tree: Debian packages of the program and of its roles, an archive for other systems,
# a list of its components (CycloneDX), and checksums.
#
#   packaging/release.sh [DIRECTORY]     the directory is new (dist)
#
#   PREBUILT=1       packs the program that the release directory has already, as a check of the packages
#   CARGO_TARGET_DIR where it builds (target)
#
# It needs cargo-deb and cargo-sbom (cargo install --locked cargo-deb cargo-sbom), git, python3 and dpkg-deb.
set -eu -o pipefail
cd "$(dirname "$0")/.."
features=submit
out=${1:-dist}
generated=packaging/generated
program=${CARGO_TARGET_DIR:-target}/release/tandem

fail() {
    echo "release.sh: $*" >&2
    exit 1
}

for tool in cargo-deb cargo-sbom; do
    command -v "$tool" >/dev/null || fail "$tool is missing: cargo install --locked $tool"
done
for tool in git python3 dpkg-deb; do
    command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install $tool"
done
[ -n "${PREBUILT:-}" ] || [ -z "$(git status --porcelain)" ] || fail 'the tree has changes that are not committed'
[ ! -e "$out" ] || fail "$out exists already: name a new directory"
mkdir -p "$out"
out=$(cd "$out" && pwd)
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT

# The time of the commit, so that two builds of it have the same files.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
[ -n "$version" ] || fail 'Cargo.toml has no version'

if [ -z "${PREBUILT:-}" ]; then
    # The program names no directory of the machine that built it.
    RUSTFLAGS="--remap-path-prefix=$PWD=/tandem --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
        cargo build --release --locked -p tandem-cli --features "$features"
fi

# The files that the manifest names besides the sources.
rm -rf "$generated"
mkdir -p "$generated/completions"
"$program" man --to "$generated/man"
for shell in bash zsh fish; do
    "$program" completions "$shell" >"$generated/completions/tandem.$shell"
done
python3 packaging/licences.py "$features" | gzip -n -9 >"$generated/third-party-licences.txt.gz"
cat >"$generated/changelog" <<EOF
tandem-proxy ($version-1) unstable; urgency=medium

  * Release $version. CHANGELOG.md of the sources lists its changes.

 -- Tandem maintainers <maintainers@example.invalid>  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
EOF

for variant in '' client gateway relay issuer; do
    cargo deb --quiet --no-build --locked --strip -p tandem-cli ${variant:+--variant "$variant"} --output "$out/"
done

archive=tandem-$version-$(rustc -vV | sed -n 's/^host: //p')
mkdir "$staging/$archive"
cp -r "$generated"/{man,completions,third-party-licences.txt.gz} packaging/{client,gateway,relay,issuer,bridge}.toml packaging/systemd \
    README.md SECURITY.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$staging/$archive"
cp -r docs/src "$staging/$archive/docs"
install -m 755 "$program" "$staging/$archive/tandem"
strip --strip-debug "$staging/$archive/tandem"
tar -C "$staging" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' \
    -c "$archive" | gzip -n -9 >"$out/$archive.tar.gz"

cargo sbom --cargo-package tandem-cli --output-format cyclone_dx_json_1_4 >"$out/tandem-$version.cdx.json"

(cd "$out" && sha256sum -- * >"$staging/SHA256SUMS")
mv "$staging/SHA256SUMS" "$out"
echo "The release is in $out. Check it (packaging/check.sh) and sign it: gpg --armor --detach-sign $out/SHA256SUMS"
