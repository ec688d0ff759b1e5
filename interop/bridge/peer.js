// The foreign ends of a bridge: an origin and a client for HTTP/1.1 and HTTP/2, with and without TLS, from Node's own
// `http`, `https` and `http2`.
//
//   node peer.js origin PROTOCOL [CERT KEY]        writes its address
//   node peer.js client PROTOCOL ADDRESS CASE      ends with status 1 and a message unless the case holds
//
// PROTOCOL is http, http+tls, h2+tcp or h2+tls, and for the client also proxy: requests for http://site.test/ to a proxy over
// HTTP/1.1. CASE is one of the names in `cases`.
'use strict'

const crypto = require('node:crypto')
const fs = require('node:fs')
const http = require('node:http')
const http2 = require('node:http2')
const https = require('node:https')

const MIB = Buffer.alloc(1 << 20, 'tandem bridge ')

// The origin: one behaviour for each path, by the interface that both modules share.
let together = []
function answer (request, response) {
  switch (request.url) {
    case '/page':
      if (request.headers['if-none-match'] === '"1"') {
        response.writeHead(304, { etag: '"1"' })
        return response.end()
      }
      response.writeHead(200, {
        'content-length': 4, etag: '"1"', 'seen-via': request.headers.via ?? 'none', 'seen-test': request.headers.test ?? 'none'
      })
      return response.end(request.method === 'HEAD' ? undefined : 'page')
    case '/large':
      response.writeHead(200, { 'content-type': 'application/octet-stream' })
      return response.end(MIB)
    case '/hints':
      response.writeEarlyHints({ link: '</style.css>; rel=preload; as=style' })
      response.writeHead(200)
      return response.end('page')
    case '/cut':
      response.writeHead(200, { 'content-length': 1000 })
      response.write('half', () => setTimeout(() => response.stream
        ? response.stream.close(http2.constants.NGHTTP2_INTERNAL_ERROR)
        : response.socket.destroy(), 100))
      return
    case '/together':
      together.push(response)
      if (together.length === 100) {
        for (const each of together) each.end('together')
        together = []
      }
      return
    case '/echo': {
      const parts = []
      request.on('data', (part) => parts.push(part))
      request.on('end', () => {
        response.writeHead(200, { trailer: 'after, seen' })
        response.write(Buffer.concat(parts))
        response.addTrailers({ after: 'yes', seen: request.trailers.sent ?? 'none' })
        response.end()
      })
      return
    }
    default:
      response.writeHead(404)
      response.end()
  }
}

// The proof that the server has read the key (RFC 6455 section 4.2.2).
function proof (key) {
  return crypto.createHash('sha1').update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64')
}

function origin (protocol, cert, key) {
  const tls = cert && { cert: fs.readFileSync(cert), key: fs.readFileSync(key) }
  const server = {
    http: () => http.createServer(answer),
    'http+tls': () => https.createServer(tls, answer),
    'h2+tcp': () => http2.createServer(answer),
    'h2+tls': () => http2.createSecureServer({ ...tls, allowHTTP1: false }, answer)
  }[protocol]()
  // A WebSocket sends back all bytes.
  server.on('upgrade', (request, socket, head) => {
    socket.write(`HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: ${proof(request.headers['sec-websocket-key'])}\r\n\r\n`)
    socket.write(head)
    socket.pipe(socket)
  })
  server.listen(0, '127.0.0.1', () => console.log(`127.0.0.1:${server.address().port}`))
}

// The client. An exchange is { method, path, fields, body, trailers }; the result has the status, the fields, the body,
// the trailers and the interim statuses, or the error that ended it.
function client (protocol, address) {
  const secure = protocol.endsWith('tls')
  const base = `${secure ? 'https' : 'http'}://${address}`
  return protocol.startsWith('h2') ? overH2(http2.connect(base, { rejectUnauthorized: false })) : overHttp1(protocol, address)
}

function overH2 (session) {
  session.on('error', () => {})
  const send = ({ method = 'GET', path, fields = {}, body, trailers }) => new Promise((resolve) => {
    const stream = session.request({ ':method': method, ':path': path, ...fields }, { endStream: !body, waitForTrailers: !!trailers })
    const result = { interim: [], parts: [], trailers: {} }
    stream.on('headers', (head) => result.interim.push(head[':status']))
    stream.on('response', (head) => Object.assign(result, { status: head[':status'], fields: head }))
    stream.on('data', (part) => result.parts.push(part))
    stream.on('trailers', (fields) => { result.trailers = fields })
    stream.on('wantTrailers', () => stream.sendTrailers(trailers))
    stream.on('error', (error) => { result.error = error })
    stream.on('close', () => {
      if (stream.rstCode !== 0) result.error ??= new Error(`reset ${stream.rstCode}`)
      resolve(Object.assign(result, { body: Buffer.concat(result.parts) }))
    })
    if (body) stream.end(body)
  })
  return { send, close: () => session.destroy() }
}

function overHttp1 (protocol, address) {
  const secure = protocol.endsWith('tls')
  const [prefix, own] = protocol === 'proxy' ? ['http://site.test', { host: 'site.test' }] : ['', {}]
  const [host, port] = address.split(':')
  const agent = secure ? new https.Agent({ rejectUnauthorized: false }) : new http.Agent()
  const send = ({ method = 'GET', path, fields = {}, body, trailers }) => new Promise((resolve) => {
    const result = { interim: [], parts: [], trailers: {} }
    const finish = (error) => {
      if (error) result.error ??= error
      resolve(Object.assign(result, { body: Buffer.concat(result.parts) }))
    }
    const headers = { ...own, ...fields, ...(trailers && { trailer: Object.keys(trailers).join(', ') }) }
    const request = (secure ? https : http).request({ host, port, method, path: prefix + path, headers, agent }, (response) => {
      Object.assign(result, { status: response.statusCode, fields: response.headers })
      response.on('data', (part) => result.parts.push(part))
      response.on('error', finish)
      response.on('end', () => {
        result.trailers = response.trailers
        finish(response.complete ? undefined : new Error('incomplete'))
      })
    })
    request.on('information', (head) => result.interim.push(head.statusCode))
    request.on('error', finish)
    if (body) request.write(body)
    if (trailers) request.addTrailers(trailers)
    request.end()
  })
  const upgrade = (path, key) => new Promise((resolve, reject) => {
    const headers = {
      connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-version': '13', 'sec-websocket-key': key
    }
    const request = (secure ? https : http).request({ host, port, path, headers, agent })
    request.on('upgrade', (response, socket) => resolve({ response, socket }))
    request.on('response', (response) => reject(new Error(`status ${response.statusCode}`)))
    request.on('error', reject)
    request.end()
  })
  return { send, upgrade, close: () => agent.destroy(), passesClient: prefix !== '' }
}

function same (what, found, expected) {
  if (found !== expected) throw new Error(`${what}: ${String(found).slice(0, 200)} instead of ${String(expected).slice(0, 200)}`)
}

function whole (result, status, body) {
  if (result.error) throw result.error
  same('status', result.status, status)
  if (!result.body.equals(Buffer.from(body))) throw new Error(`${result.body.length} bytes of body`)
}

const cases = {
  async get ({ send, passesClient }) {
    const result = await send({ path: '/page', fields: { test: '1' } })
    whole(result, 200, 'page')
    same('field', result.fields['seen-test'], '1')
    // Only a bridge names itself.
    if (!passesClient && !/tandem-/.test(result.fields['seen-via'])) throw new Error(`Via: ${result.fields['seen-via']}`)
  },
  async head ({ send }) {
    const result = await send({ method: 'HEAD', path: '/page' })
    whole(result, 200, '')
    same('length', result.fields['content-length'], '4')
  },
  async unmodified ({ send }) {
    const result = await send({ path: '/page', fields: { 'if-none-match': '"1"' } })
    whole(result, 304, '')
    same('tag', result.fields.etag, '"1"')
  },
  async large ({ send }) {
    whole(await send({ path: '/large' }), 200, MIB)
  },
  async post ({ send }) {
    const result = await send({ method: 'POST', path: '/echo', body: MIB })
    whole(result, 200, MIB)
  },
  async trailers ({ send }) {
    const result = await send({ method: 'POST', path: '/echo', body: 'abc', trailers: { sent: 'also' } })
    whole(result, 200, 'abc')
    same('trailer', result.trailers.after, 'yes')
    same('trailer of the request', result.trailers.seen, 'also')
  },
  async hints ({ send }) {
    const result = await send({ path: '/hints' })
    whole(result, 200, 'page')
    same('interim responses', result.interim.join(), '103')
  },
  async cut ({ send }) {
    const result = await send({ path: '/cut' })
    if (!result.error && result.status === 200) throw new Error('a response that broke off looks whole')
  },
  async together ({ send }) {
    // The origin answers only when all of them have arrived.
    const all = Array.from({ length: 100 }, () => send({ path: '/together' }))
    for (const result of await Promise.all(all)) whole(result, 200, 'together')
  },
  async missing ({ send }) {
    same('status', (await send({ path: '/nothing' })).status, 404)
  },
  async load ({ send }) {
    // Each request has a field of its own.
    let sent = 0
    const next = async () => {
      while (sent < 1000) {
        const test = `number ${++sent}`
        const result = await send({ path: '/page', fields: { test } })
        whole(result, 200, 'page')
        same('field', result.fields['seen-test'], test)
      }
    }
    await Promise.all(Array.from({ length: 50 }, next))
  },
  async fields ({ send }) {
    // aioquic encodes no longer fields.
    const test = MIB.toString('latin1', 0, 3997) + 'end'
    const result = await send({ path: '/page', fields: { test } })
    whole(result, 200, 'page')
    same('field', result.fields['seen-test'], test)
  },
  // The origins of the next two cases are in quic-go/server.go.
  async unread ({ send }) {
    whole(await send({ method: 'POST', path: '/unread', body: MIB }), 413, 'unread')
  },
  async leave ({ send }) {
    // The origin sends GOAWAY while the others are under way. None of them may fail, and a new connection takes the next ones.
    const server = (await send({ path: '/page' })).fields['seen-server']
    const left = [send({ path: '/large' }), send({ path: '/leave' })]
    for (let round = 0; round < 5; round++) {
      const all = Array.from({ length: 20 }, () => send({ path: '/page' }))
      for (const result of await Promise.all(all)) whole(result, 200, 'page')
    }
    const [large, leave] = await Promise.all(left)
    whole(large, 200, MIB)
    whole(leave, 200, 'leave')
    for (let tries = 0; tries < 100; tries++) {
      const result = await send({ path: '/page' })
      whole(result, 200, 'page')
      if (result.fields['seen-server'] !== server) return
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
    throw new Error('the connection before the GOAWAY takes new requests')
  },
  async push ({ send }) {
    // The origin, h3/server.py, gives another answer to a request.
    whole(await send({ path: '/pushing' }), 200, 'pushing')
    whole(await send({ path: '/pushed' }), 200, 'pushed')
  },
  async websocket ({ upgrade }) {
    const key = crypto.randomBytes(16).toString('base64')
    const { response, socket } = await upgrade('/socket', key)
    same('proof', response.headers['sec-websocket-accept'], proof(key))
    socket.end(MIB)
    const parts = []
    for await (const part of socket) parts.push(part)
    if (!Buffer.concat(parts).equals(MIB)) throw new Error('other bytes came back')
  }
}

async function main ([role, protocol, ...rest]) {
  if (role === 'origin') return origin(protocol, ...rest)
  const [address, name] = rest
  const peer = client(protocol, address)
  try {
    await cases[name](peer)
    await cases.get(peer)
  } finally {
    peer.close()
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error.message)
  process.exitCode = 1
})
