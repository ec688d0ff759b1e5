// The origin of interop/browser.sh and interop/dashboard.sh: a page with 100 visible images, and an HTTPS server for one certificate.
//
//   node origin.js page DELAY_MS HOLD [CACHE]
//                                         answers each image after the delay; the first HOLD images are held until
//                                         that many requests are under way (0 holds none); CACHE is the Cache-Control
//                                         field of images, no-store by default
//   node origin.js https CERT KEY
//
// It writes its address first, and "done MS MOST" when a page is complete: its time from the navigation to the last
// image, and the number of images that were under way at once.
'use strict';
const fs = require('fs');
const http = require('http');
const https = require('https');

const IMAGES = 100;
const GIF = Buffer.from('R0lGODlhAQABAIAAAP///wAAACwAAAAAAQABAAACAkQBADs=', 'base64');

function page() {
  const images = Array.from({ length: IMAGES }, (_, n) => `<img src="/image/${n}" width=20 height=20>`);
  const tell = `onload = () => fetch('/done?' + Math.round(performance.now()))`;
  return `<!doctype html><title>images</title><script>${tell}</script>${images.join('')}`;
}

function serveImages(delay, hold, cache) {
  let now = 0;
  let most = 0;
  let held = hold > 0 ? [] : null;
  const finish = (response) => {
    now -= 1;
    response.writeHead(200, { 'content-type': 'image/gif', 'cache-control': cache });
    response.end(GIF);
  };
  return http.createServer((request, response) => {
    if (request.url.startsWith('/image/')) {
      now += 1;
      most = Math.max(most, now);
      if (held === null) {
        setTimeout(finish, delay, response);
      } else if (held.push(response) === hold) {
        const all = held;
        held = null;
        all.forEach(finish);
      }
      return;
    }
    if (request.url.startsWith('/done?')) {
      console.log(`done ${request.url.slice(6)} ${most}`);
      most = 0;
    }
    response.writeHead(200, { 'content-type': 'text/html', 'cache-control': 'no-store' });
    response.end(request.url === '/' ? page() : '');
  });
}

function serveSecure(cert, key) {
  const options = { cert: fs.readFileSync(cert), key: fs.readFileSync(key) };
  return https.createServer(options, (_, response) => response.end('<!doctype html><p>accepted'));
}

const [what, ...rest] = process.argv.slice(2);
const images = () => serveImages(Number(rest[0]), Number(rest[1]), rest[2] ?? 'no-store');
const server = what === 'https' ? serveSecure(...rest) : images();
server.listen(0, '127.0.0.1', () => console.log(`127.0.0.1:${server.address().port}`));
