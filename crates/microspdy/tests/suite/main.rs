//! The library from outside: C programs that are compiled here, and SPDY clients that meet them.
//! The tests need a C and a C++ compiler and `nm`: `apt-get install g++ binutils`.

mod accept;
mod build;
mod client;
mod ended;
mod examples;
mod hostile;
mod interface;
mod served;
mod stop;
mod tls;
