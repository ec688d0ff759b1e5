//! The observation points, and their USDT probes `tandem:FAMILY_NAME` with a value and an index.
//!
//! A probe is a `nop` that the ELF note section `.note.stapsdt` describes, in version 3 of
//! SystemTap's format. A note holds the provider, name, address, arguments and semaphore. The
//! semaphore is a 16-bit count that the kernel raises in memory while a tracer is attached. It is
//! the lower half of the point's gate, so that one load tests both. It must be in a file-backed
//! part of memory, hence the section `.probes`. Points have USDT probes only on Linux, on x86-64
//! and AArch64.

#![expect(
    unsafe_code,
    reason = "the notes are written by the assembler, and their semaphores need a section of their own"
)]

use super::{Point, Unit};

/// The places of the arguments, in the syntax of AT&T assembly: two registers of 8 bytes.
#[cfg(target_arch = "x86_64")]
macro_rules! arguments {
    () => {
        "8@%{value} 8@%{index}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! arguments {
    () => {
        "8@{value} 8@{index}"
    };
}

/// Passes a described `nop`. `$point` must begin with its semaphore.
#[cfg(all(
    target_os = "linux",
    target_endian = "little",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
macro_rules! site {
    ($point:ident $name:expr, $value:ident, $index:ident) => {
        // SAFETY: the one instruction has no effect, and the note is not part of the code.
        unsafe {
            std::arch::asm!(
                "990: nop",
                r#".pushsection .note.stapsdt, "", "note""#,
                ".balign 4",
                ".4byte 992f - 991f, 994f - 993f, 3",
                r#"991: .asciz "stapsdt""#,
                "992: .balign 4",
                // Address, base (for the obsolete prelink), semaphore.
                "993: .8byte 990b, 0, {point}",
                r#".asciz "tandem""#,
                concat!(".asciz \"", $name, "\""),
                concat!(".asciz \"", arguments!(), "\""),
                "994: .balign 4",
                ".popsection",
                point = sym $point,
                value = in(reg) $value,
                index = in(reg) $index,
                options(nomem, nostack, preserves_flags)
            )
        }
    };
}

#[cfg(not(all(
    target_os = "linux",
    target_endian = "little",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
macro_rules! site {
    ($point:ident $name:expr, $value:ident, $index:ident) => {
        let _ = ($value, $index);
    };
}

macro_rules! points {
    ($($point:ident $family:literal $name:literal $unit:ident $help:literal;)*) => {
        $(
            #[doc = $help]
            #[cfg_attr(target_os = "linux", unsafe(link_section = ".probes"))]
            pub static $point: Point = {
                #[inline(never)]
                fn fire(value: u64, index: u64) {
                    site!($point concat!($family, "_", $name), value, index);
                }
                Point::new($family, $name, Unit::$unit, $help, fire)
            };
        )*

        /// All points, grouped by family.
        pub static POINTS: &[&Point] = &[$(&$point),*];
    };
}

points! {
    QUEUE_CORE "queue" "core" Ns "Time of a part of a body in its stream, until its last byte leaves for the socket";
    QUEUE_FULL "queue" "full" Ns "Time for which a stream's send queue is full";
    QUEUE_READER "queue" "reader" Ns "Time from the arrival of input on a stream until its reader takes it";
    FLOW_STREAM "flow" "stream" Ns "Time for which a stream's own flow-control window blocks its data";
    FLOW_SESSION "flow" "session" Ns "Time for which the session's flow-control window blocks a stream's data";
    SESSION_DIAL "session" "dial" Ns "Time from the beginning of a session's dial until its path accepts bytes";
    SESSION_ANSWER "session" "answer" Ns "Time from the beginning of a session until the first bytes of the other end";
    SESSION_WAIT "session" "wait" Ns "Time of an exchange until the first bytes of the other end; 0 if they had arrived before";
    SESSION_STREAM "session" "stream" Ns "Time of an exchange until its session opens a stream for it";
    ORIGIN_DIAL "origin" "dial" Ns "Time to connect to an origin, including TLS";
    ORIGIN_HEAD "origin" "head" Ns "Time from a request at the gateway until the origin's final head, including the dial";
    EXCHANGE_HEAD "exchange" "head" Ns "Time of an exchange from its request to the final head";
    EXCHANGE_WHOLE "exchange" "whole" Ns "Time of an exchange from its request to the end of the response";
    HEADERS_ENCODE "headers" "encode" Ns "Time to encode the head of a request, response or push";
    HEADERS_DECODE "headers" "decode" Ns "Time to decode a read of a session that contains heads";
    SOCKET_READ "socket" "read" Bytes "Bytes per read from a session's connection";
    SOCKET_WRITE "socket" "write" Bytes "Bytes per write that a session's connection accepted";
    SOCKET_WAIT "socket" "wait" Ns "Time from a session's output until its connection has accepted all of it";
    FRONT_HANDSHAKE "front" "handshake" Ns "Time of the TLS handshake of an accepted connection";
}
