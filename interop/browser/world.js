// The origins of browsers.js: pages of many resources on several hosts, over plain HTTP and over HTTPS. Each body follows from
// its path, so that a browser's copy can be compared with the origin's.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const http = require('http');
const http2 = require('http2');
const zlib = require('zlib');

const IMAGES = 36;
const FOREVER = 'max-age=600';

/** Bytes that follow from a text alone. */
function noise(text, length) {
  const cipher = crypto.createCipheriv('aes-128-ctr', crypto.createHash('md5').update(text).digest(), Buffer.alloc(16));
  return cipher.update(Buffer.alloc(length));
}

/** A picture of random colours, as a bitmap. */
function bitmap(path, side) {
  const row = Math.ceil((side * 3) / 4) * 4;
  const head = Buffer.alloc(54);
  head.write('BM');
  head.writeUInt32LE(54 + row * side, 2);
  head.writeUInt32LE(54, 10);
  head.writeUInt32LE(40, 14);
  head.writeInt32LE(side, 18);
  head.writeInt32LE(side, 22);
  head.writeUInt16LE(1, 26);
  head.writeUInt16LE(24, 28);
  return Buffer.concat([head, noise(path, row * side)]);
}

function comment(path, length) {
  return `/* ${noise(path, length).toString('hex')} */\n`;
}

/** The URLs of a page's resources: every kind, on each of its hosts. */
function resourcesOf(origins, tag) {
  const at = (n, path) => `${origins[n % origins.length]}/${tag}${path}`;
  const images = Array.from({ length: IMAGES }, (_, n) => at(n, `/image/${n}.bmp`));
  const styles = [0, 1, 2].map((n) => at(n, `/style/${n}.css`));
  const scripts = [0, 1, 2, 3].map((n) => at(n, `/script/${n}.js`));
  const modules = [at(0, '/module/0.mjs'), at(0, '/module/1.mjs')];
  return { images, styles, scripts, modules, font: at(1, '/font/0.woff2'), data: at(0, '/data/0.json'), frame: at(0, '/frame/0.html') };
}

function page(origins, tag) {
  const { images, styles, scripts, modules, font, data, frame } = resourcesOf(origins, tag);
  const lines = ['<!doctype html><meta charset=utf-8><title>page</title>', '<script>window.ran = []; onload = () => { window.complete = true }</script>'];
  for (const style of styles) lines.push(`<link rel=stylesheet href="${style}">`);
  lines.push(`<style>@font-face { font-family: own; src: url("${font}") } body { font-family: own }</style>`);
  for (const script of scripts) lines.push(`<script src="${script}"></script>`);
  lines.push(`<script type=module src="${modules[0]}"></script>`);
  lines.push(`<script>fetch("${data}").then((it) => it.text()).then((it) => ran.push(it.length))</script>`);
  lines.push('<p>Text with a font.</p>', `<iframe width=60 height=60 src="${frame}"></iframe>`);
  for (const image of images) lines.push(`<img width=40 height=40 src="${image}">`);
  return lines.join('\n');
}

/** Returns the type and body of a resource. */
function bodyOf(path) {
  const [, , kind, name] = path.split('?')[0].split('/');
  const number = Number.parseInt(name, 10) || 0;
  switch (kind) {
    case 'image': return ['image/bmp', bitmap(path, 12 + 11 * (number % 9))];
    case 'style': return ['text/css', Buffer.from(`${comment(path, 2000 + 900 * number)}body { color: rgb(${number}, 0, 0) }\n`)];
    case 'script': return ['text/javascript', Buffer.from(`${comment(path, 3000 + 5000 * number)}window.ran.push('script ${number}');\n`)];
    case 'module': return ['text/javascript', Buffer.from(`${number ? '' : 'import "./1.mjs";\n'}${comment(path, 800)}window.ran.push('module ${number}');\n`)];
    case 'font': return ['font/woff2', noise(path, 9000)];
    case 'data': return ['application/json', Buffer.from(JSON.stringify({ text: noise(path, 500).toString('base64') }))];
    case 'frame': return ['text/html', Buffer.from(`<!doctype html><p>framed ${noise(path, 100).toString('hex')}`)];
    case 'blob': return ['application/octet-stream', noise(path, 700000 + number)];
    default: return null;
  }
}

/** A hash that a page without a secure context can compute too. */
const HASH = `(bytes) => {
  let one = 1; let two = 0;
  for (const byte of bytes) { one = (one + byte) % 65521; two = (two + one) % 65521; }
  return bytes.length + ':' + (two * 65536 + one);
}`;
const hash = eval(HASH);

/** The requests that reached the origins. */
class World {
  constructor(directory) {
    this.directory = directory;
    this.requests = [];
    this.servers = [];
  }

  /** Starts an origin. Without a certificate it speaks plain HTTP. */
  async start(certificate, host = '127.0.0.1') {
    const file = (ending) => fs.readFileSync(`${this.directory}/${certificate}.${ending}`);
    const answer = (request, response) => this.answer(request, response);
    const server = certificate
      ? http2.createSecureServer({ cert: file('pem'), key: file('key'), allowHTTP1: true }, answer)
      : http.createServer(answer);
    server.on('upgrade', echo);
    this.servers.push(server);
    await new Promise((resolve) => server.listen(0, host, resolve));
    return server.address().port;
  }

  close() {
    for (const server of this.servers) server.close();
  }

  /** The requests for a path since a moment in the list. */
  of(ending, since = 0) {
    return this.requests.slice(since).filter(({ path }) => path.endsWith(ending));
  }

  answer(request, response) {
    const path = request.url;
    this.requests.push({ method: request.method, path, fields: request.headers, host: request.headers.host ?? request.headers[':authority'] });
    if (path.startsWith('/page?')) return this.answerPage(request, response);
    if (path.startsWith('/echo')) return answerEcho(request, response);
    if (path.startsWith('/form')) return answerForm(request, response);
    if (path.startsWith('/tagged')) return answerTagged(request, response);
    if (path.startsWith('/download')) {
      response.setHeader('content-disposition', 'attachment; filename="blob.bin"');
      response.setHeader('content-type', 'application/octet-stream');
      return response.end(noise('/download', 1234567));
    }
    const found = bodyOf(path);
    if (!found) {
      response.writeHead(404);
      return response.end('nothing');
    }
    const [type, body] = found;
    return send(request, response, type, body, FOREVER);
  }

  /** A page: /page?TAG,ORIGIN,ORIGIN,... */
  answerPage(request, response) {
    const [tag, ...origins] = request.url.slice(6).split(',');
    send(request, response, 'text/html', Buffer.from(page(origins, tag)), 'no-cache');
  }
}

function send(request, response, type, body, cache) {
  response.setHeader('content-type', type);
  response.setHeader('cache-control', cache);
  response.setHeader('access-control-allow-origin', '*');
  const isText = /text|json/.test(type);
  if (isText && /gzip/.test(request.headers['accept-encoding'] ?? '')) {
    response.setHeader('content-encoding', 'gzip');
    response.setHeader('vary', 'accept-encoding');
    return response.end(zlib.gzipSync(body));
  }
  return response.end(body);
}

/** Gives the body of a request back. */
function answerEcho(request, response) {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => {
    response.setHeader('access-control-allow-origin', '*');
    response.end(Buffer.concat(parts));
  });
}

/** A form that is sent by POST and answered with a redirect. */
function answerForm(request, response) {
  if (request.method === 'POST') {
    const parts = [];
    request.on('data', (part) => parts.push(part));
    request.on('end', () => {
      response.writeHead(303, { location: `/form?got=${Buffer.concat(parts)}` });
      response.end();
    });
    return;
  }
  response.setHeader('content-type', 'text/html');
  response.end(`<!doctype html><form method=post action=/form><input name=word value=some></form><p>${request.url}`);
}

/** A page that a browser must validate at each use. */
function answerTagged(request, response) {
  response.setHeader('etag', '"one"');
  response.setHeader('cache-control', 'no-cache');
  response.setHeader('content-type', 'text/html');
  if (request.headers['if-none-match'] === '"one"') {
    response.writeHead(304);
    return response.end();
  }
  return response.end('<!doctype html><p>tagged');
}

/** Gives the data of a WebSocket back, message by message (RFC 6455 section 5.2). */
function echo(request, socket) {
  const guid = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
  const accept = crypto.createHash('sha1').update(request.headers['sec-websocket-key'] + guid).digest('base64');
  socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n`
    + `Sec-WebSocket-Accept: ${accept}\r\n\r\n`);
  let rest = Buffer.alloc(0);
  socket.on('error', () => {});
  socket.on('data', (data) => {
    rest = Buffer.concat([rest, data]);
    for (let frame = takeFrame(rest); frame; frame = takeFrame(rest)) {
      rest = rest.subarray(frame.end);
      socket.write(frame.answer);
      if (frame.isClose) return socket.end();
    }
  });
}

function takeFrame(input) {
  if (input.length < 2) return null;
  let length = input[1] & 0x7f;
  let at = 2;
  if (length === 126) {
    if (input.length < 4) return null;
    length = input.readUInt16BE(2);
    at = 4;
  } else if (length === 127) {
    if (input.length < 10) return null;
    length = Number(input.readBigUInt64BE(2));
    at = 10;
  }
  const end = at + 4 + length;
  if (input.length < end) return null;
  const mask = input.subarray(at, at + 4);
  const payload = Buffer.from(input.subarray(at + 4, end));
  for (let n = 0; n < payload.length; n += 1) payload[n] ^= mask[n % 4];
  const head = Buffer.from(input.subarray(0, at));
  head[1] &= 0x7f;
  return { end, isClose: (input[0] & 0x0f) === 8, answer: Buffer.concat([head, payload]) };
}

module.exports = { World, bodyOf, resourcesOf, hash, HASH, noise };
