module tandem.invalid/interop/web

go 1.22
