//! Compiles the C part (`c/options.c`), which reads variadic arguments, and names the shared
//! library.

fn main() {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=include");
    let mut build = cc::Build::new();
    build
        .file("c/options.c")
        .include("include")
        .std("c99")
        .warnings_into_errors(true)
        .extra_warnings(true)
        .compile("microspdy_options");
    let apple = std::env::var("CARGO_CFG_TARGET_VENDOR").is_ok_and(|vendor| vendor == "apple");
    if !apple {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmicrospdy.so.0");
    }
}
