// The origins of interop/opened.sh: a page over HTTPS that tells the version of HTTP by which the origin was asked, and
// opens a WebSocket.
//
//   node site.js h2|http1|client CERT KEY CA
//
// "h2" speaks HTTP/2 and HTTP/1.1, "http1" HTTP/1.1 only, and "client" asks for a client certificate by CA without
// requiring one. It writes its address first.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const http2 = require('http2');
const https = require('https');

const [kind, cert, key, ca] = process.argv.slice(2);
const options = { cert: fs.readFileSync(cert), key: fs.readFileSync(key) };

// The page's second script is held until the socket has echoed or failed, so that the page is complete only then. Each load
// holds one script, and releases one.
const held = [];
let released = 0;
function hold(response) {
  if (released > 0) {
    released -= 1;
    return response.end();
  }
  return held.push(response);
}
function release() {
  const response = held.shift();
  if (response) response.end();
  else released += 1;
}

function answer(request, response) {
  if (request.url === '/held') return hold(response);
  if (request.url === '/failed') release();
  if (request.url !== '/') return response.end();
  response.setHeader('content-type', 'text/html');
  response.end(`<!doctype html><p>served over ${request.httpVersion}
<p id=socket><script>
const socket = new WebSocket('wss://' + location.host + '/socket');
socket.onopen = () => socket.send('x');
socket.onerror = () => fetch('/failed');
socket.onmessage = (event) => {
  document.getElementById('socket').textContent = 'socket ' + event.data;
  socket.send('y');
};
</script><script src=/held></script>`);
}

// A text of one byte from a client has two bytes of head and four of mask before it (RFC 6455 section 5.2).
const FRAME = 7;

function echo(request, socket) {
  const guid = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
  const accept = crypto.createHash('sha1').update(request.headers['sec-websocket-key'] + guid).digest('base64');
  socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n`
    + `Sec-WebSocket-Accept: ${accept}\r\n\r\n`);
  let received = 0;
  socket.on('error', () => {});
  socket.on('data', (data) => {
    const before = received;
    received += data.length;
    const reaches = (count) => before < count * FRAME && received >= count * FRAME;
    if (reaches(1)) socket.write(Buffer.concat([Buffer.from([0x81, 6]), Buffer.from('echoes')]));
    if (reaches(2)) release();
  });
}

function create() {
  if (kind === 'h2') return http2.createSecureServer({ ...options, allowHTTP1: true }, answer);
  if (kind === 'http1') return https.createServer(options, answer);
  const asking = { ca: fs.readFileSync(ca), requestCert: true, rejectUnauthorized: false };
  return https.createServer({ ...options, ...asking }, answer);
}

const server = create();
server.on('upgrade', echo);
server.listen(0, '127.0.0.1', () => console.log(`127.0.0.1:${server.address().port}`));
