module tandem.invalid/interop/spdystream

go 1.22

require github.com/moby/spdystream v0.5.1
