//! Compiles the C parts and names the shared library. `c/options.c` reads variadic arguments;
//! `c/npn.c` is TLS through OpenSSL.

fn main() {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=include");
    compile("c/options.c", "microspdy_options");
    if std::env::var_os("CARGO_FEATURE_OPENSSL_NPN").is_some() {
        compile("c/npn.c", "microspdy_npn");
        println!("cargo::rustc-link-lib=ssl");
        println!("cargo::rustc-link-lib=crypto");
    }
    let apple = std::env::var("CARGO_CFG_TARGET_VENDOR").is_ok_and(|vendor| vendor == "apple");
    if !apple {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmicrospdy.so.0");
    }
}

fn compile(source: &str, library: &str) {
    cc::Build::new()
        .file(source)
        .include("include")
        .std("c99")
        .warnings_into_errors(true)
        .extra_warnings(true)
        .compile(library);
}
