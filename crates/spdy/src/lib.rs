//! Sans-IO SPDY/3 and SPDY/3.1: frames, header blocks, streams, flow control, push.
