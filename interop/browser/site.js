// The origins of interop/opened.sh: pages over HTTPS that tell the version of HTTP by which the origin was asked.
//
//   node site.js DIRECTORY CERTIFICATE:KIND...
//
// Each origin has the files CERTIFICATE.pem and CERTIFICATE.key of the directory. The kinds are:
//
//   h2       speaks HTTP/2 and HTTP/1.1; the page opens a WebSocket
//   http1    the same with HTTP/1.1 only
//   client   asks for a client certificate by root.pem without requiring one
//   revoked  staples revoked.ocsp
//   weak     has a certificate that OpenSSL refuses at its usual level of security
//   page     has a page with a resource of each origin of the kind "part"
//
// It writes one line with the ports first, in this order.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const http2 = require('http2');
const https = require('https');

const [directory, ...sites] = process.argv.slice(2);
const file = (name) => fs.readFileSync(`${directory}/${name}`);
const parts = [];

// The page's second script is held until its socket has echoed or failed, so that the page is complete only then. Each load
// has a number, since a gateway may request the script before the browser does.
let loads = 0;
const held = new Map();
function hold(load, response) {
  if (!held.has(load)) held.set(load, []);
  if (held.get(load) === 'released') response.end();
  else held.get(load).push(response);
}
function release(load) {
  const waiting = held.get(load) || [];
  held.set(load, 'released');
  if (waiting !== 'released') waiting.forEach((response) => response.end());
}

function answer(request, response) {
  const [path, number] = request.url.split('?');
  if (path === '/held') return hold(number, response);
  if (path === '/failed') release(number);
  if (path !== '/') return response.end();
  loads += 1;
  response.setHeader('content-type', 'text/html');
  response.setHeader('set-cookie', 'visit=1; Secure');
  return response.end(`<!doctype html><p>served over ${request.httpVersion}
<p id=socket><script>
const socket = new WebSocket('wss://' + location.host + '/socket?${loads}');
socket.onopen = () => socket.send('x');
socket.onerror = () => fetch('/failed?${loads}');
socket.onmessage = (event) => {
  document.getElementById('socket').textContent = 'socket ' + event.data;
  socket.send('y');
};
</script><script src=/held?${loads}></script>`);
}

function answerPage(request, response) {
  response.setHeader('content-type', 'text/html');
  const scripts = parts.map((port) => `<script src=https://localhost:${port}/part.js></script>`);
  response.end(`<!doctype html><p>a page of many origins</p>${scripts.join('')}`);
}

function answerPart(request, response) {
  response.setHeader('content-type', 'text/javascript');
  response.setHeader('cache-control', 'max-age=600');
  response.end("document.body.append(' with a part');");
}

// A text of one byte from a client has two bytes of head and four of mask before it (RFC 6455 section 5.2).
const FRAME = 7;

// A browser sends its cookies and the origin of the page with a WebSocket.
function echo(request, socket) {
  const { cookie, origin, host } = request.headers;
  const isWhole = /visit=1/.test(cookie) && origin === `https://${host}`;
  const text = Buffer.from(isWhole ? 'echoes' : 'lacks its fields');
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
    if (reaches(1)) socket.write(Buffer.concat([Buffer.from([0x81, text.length]), text]));
    if (reaches(2)) release(request.url.split('?')[1]);
  });
}

function create(site) {
  const [name, kind] = site.split(':');
  const options = { cert: file(`${name}.pem`), key: file(`${name}.key`), allowHTTP1: true };
  if (kind === 'weak') options.ciphers = 'DEFAULT@SECLEVEL=0';
  if (kind === 'client') Object.assign(options, { ca: file('root.pem'), requestCert: true, rejectUnauthorized: false });
  const make = ['http1', 'client'].includes(kind) ? https.createServer : http2.createSecureServer;
  const server = make(options, { page: answerPage, part: answerPart }[kind] || answer);
  if (kind === 'revoked') server.on('OCSPRequest', (_, __, done) => done(null, file('revoked.ocsp')));
  server.on('upgrade', echo);
  return new Promise((resolve) => {
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      if (kind === 'part') parts.push(port);
      resolve(port);
    });
  });
}

Promise.all(sites.map(create)).then((ports) => console.log(`ports ${ports.join(' ')}`));
