//! The points, and how each shows itself to tracers: a USDT probe `tandem:FAMILY_NAME` with the
//! value and an index.
//!
//! A probe is a `nop` that is described in the ELF note section `.note.stapsdt`, version 3 of
//! SystemTap's format: provider, name, place, arguments, and a semaphore, a 16-bit count that the
//! kernel raises in memory while a tracer is attached. The semaphore is the lower half of the
//! point's gate, so that one load answers for both. It must be in a file-backed part of memory,
//! hence the section `.probes`. Elsewhere than on Linux on two processors, points have no USDT
//! probe.

#![expect(
    unsafe_code,
    reason = "the notes are written by the assembler, and their semaphores need a section of their own"
)]

use super::{Point, Unit};

/// Where the arguments are, as AT&T assembly writes it: two registers of 8 bytes.
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

/// Passes over a described `nop`. `$point` must begin with its semaphore.
#[cfg(all(
    target_os = "linux",
    target_endian = "little",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
macro_rules! site {
    ($point:ident $name:expr, $value:ident, $index:ident) => {
        // SAFETY: the one instruction does nothing, and the note is no part of the program that
        // runs.
        unsafe {
            std::arch::asm!(
                "990: nop",
                r#".pushsection .note.stapsdt, "", "note""#,
                ".balign 4",
                ".4byte 992f - 991f, 994f - 993f, 3",
                r#"991: .asciz "stapsdt""#,
                "992: .balign 4",
                // Place, base (for prelink, which nobody uses any more), semaphore.
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

        /// All of them, families together.
        pub static POINTS: &[&Point] = &[$(&$point),*];
    };
}

points! {
    QUEUE_CORE "queue" "core" Ns "Part of a body in its stream, from being given to the session until the last byte leaves for the socket";
    QUEUE_FULL "queue" "full" Ns "Stream that holds all it may, until it is given more to send";
    QUEUE_READER "queue" "reader" Ns "What arrived on a stream, until its reader takes it";
    FLOW_STREAM "flow" "stream" Ns "Stream with data that its own flow-control window lets nothing of out";
    FLOW_SESSION "flow" "session" Ns "Stream with data that the session's flow-control window lets nothing of out";
    SESSION_DIAL "session" "dial" Ns "Way to the other end of a session: from beginning to dial until bytes can be given to it";
    SESSION_ANSWER "session" "answer" Ns "Session: from its beginning until the first bytes of the other end";
    SESSION_WAIT "session" "wait" Ns "Exchange that needs a session, until the other end has shown itself; 0 where it had before";
    SESSION_STREAM "session" "stream" Ns "Exchange that waits until its session opens a stream for it";
    ORIGIN_DIAL "origin" "dial" Ns "Connection to an origin, TLS included";
    ORIGIN_HEAD "origin" "head" Ns "Origin's answer: from the request at the gateway until the final head, dialling included";
    EXCHANGE_HEAD "exchange" "head" Ns "Exchange, from its request to the final head";
    EXCHANGE_WHOLE "exchange" "whole" Ns "Exchange, from its request to the end of its answer";
    HEADERS_ENCODE "headers" "encode" Ns "Writing the head of a request, an answer or a push into a session";
    HEADERS_DECODE "headers" "decode" Ns "Taking in a read of a session that brought heads, with what else it brought";
    SOCKET_READ "socket" "read" Bytes "Read from a session's connection";
    SOCKET_WRITE "socket" "write" Bytes "Write that a session's connection took";
    SOCKET_WAIT "socket" "wait" Ns "What a session gave out to be written, until its connection has taken all of it";
    FRONT_HANDSHAKE "front" "handshake" Ns "TLS handshake of a connection that was accepted";
}
