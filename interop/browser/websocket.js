// A client of WebSockets with text messages (RFC 6455), for firefox.js: the browser of this machine is its only peer.
'use strict';
const crypto = require('crypto');
const http = require('http');

const TEXT = 1;
const CLOSE = 8;
const PING = 9;
const PONG = 10;

class WebSocketClient {
  /** Connects, and gives each message to a function. */
  static connect(url, receive) {
    return new Promise((resolve, reject) => {
      const { hostname, port, pathname } = new URL(url);
      const headers = {
        connection: 'Upgrade',
        upgrade: 'websocket',
        'sec-websocket-version': '13',
        'sec-websocket-key': crypto.randomBytes(16).toString('base64'),
      };
      const request = http.get({ hostname, port, path: pathname, headers });
      request.on('error', reject);
      request.on('response', (response) => reject(new Error(`status ${response.statusCode}`)));
      request.on('upgrade', (_, socket, head) => resolve(new WebSocketClient(socket, head, receive)));
    });
  }

  constructor(socket, head, receive) {
    this.socket = socket;
    this.receive = receive;
    this.rest = head;
    this.parts = [];
    socket.on('data', (data) => {
      this.rest = Buffer.concat([this.rest, data]);
      while (this.takeFrame());
    });
    socket.on('error', () => {});
    this.takeFrame();
  }

  /** Takes a whole frame from the input, if there is one. */
  takeFrame() {
    if (this.rest.length < 2) return false;
    let length = this.rest[1] & 0x7f;
    let start = 2;
    if (length === 126) {
      if (this.rest.length < 4) return false;
      length = this.rest.readUInt16BE(2);
      start = 4;
    } else if (length === 127) {
      if (this.rest.length < 10) return false;
      length = Number(this.rest.readBigUInt64BE(2));
      start = 10;
    }
    if (this.rest.length < start + length) return false;
    const isLast = (this.rest[0] & 0x80) !== 0;
    const kind = this.rest[0] & 0x0f;
    const payload = this.rest.subarray(start, start + length);
    this.rest = this.rest.subarray(start + length);
    if (kind === PING) this.write(PONG, payload);
    else if (kind === CLOSE) this.socket.end();
    else if (kind <= 2) {
      this.parts.push(payload);
      if (isLast) this.receive(Buffer.concat(this.parts.splice(0)).toString());
    }
    return true;
  }

  send(text) {
    this.write(TEXT, Buffer.from(text));
  }

  write(kind, payload) {
    const head = Buffer.alloc(14);
    head[0] = 0x80 | kind;
    let at = 2;
    if (payload.length < 126) {
      head[1] = 0x80 | payload.length;
    } else if (payload.length < 65536) {
      head[1] = 0x80 | 126;
      at = head.writeUInt16BE(payload.length, 2);
    } else {
      head[1] = 0x80 | 127;
      at = head.writeBigUInt64BE(BigInt(payload.length), 2);
    }
    const mask = crypto.randomBytes(4);
    mask.copy(head, at);
    const masked = Buffer.from(payload.map((byte, n) => byte ^ mask[n % 4]));
    this.socket.write(Buffer.concat([head.subarray(0, at + 4), masked]));
  }
}

module.exports = { WebSocketClient };
