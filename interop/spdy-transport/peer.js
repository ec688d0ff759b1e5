// One end of a SPDY session by npm's spdy-transport: the same server and cases as crates/spdy/examples/peer.rs, and a
// few more for proxies at the other end.
//
// Over plain TCP; with files named by CERT and KEY (serving) or CA (asking) in the environment, over TLS, where ALPN
// offers both versions and must settle on the given one.
//
//   node peer.js serve 3.1                      prints its address, serves until killed
//   node peer.js client 3.1 127.0.0.1:1 CASE    exits with 0 when the case holds
'use strict'

const fs = require('fs')
const net = require('net')
const tls = require('tls')
const transport = require('spdy-transport')

const { priorityToWeight, weightToPriority } = transport.protocol.base.utils

const [mode, version, address, name] = process.argv.slice(2)

function pattern (from, length) {
  const body = Buffer.alloc(length)
  for (let at = 0; at < length; at++) body[at] = (from + at) % 251
  return body
}

function fits (from, data) {
  return data.every((byte, at) => byte === (from + at) % 251)
}

function fail (message) {
  process.stderr.write(`${message}\n`)
  process.exit(1)
}

function check (holds, message) {
  if (!holds) fail(message)
}

const ALPNProtocols = ['spdy/3.1', 'spdy/3']

function session (socket, isServer) {
  check(socket.alpnProtocol === undefined || socket.alpnProtocol === `spdy/${version}`, `ALPN chose ${socket.alpnProtocol}`)
  socket.setNoDelay(true)
  const connection = transport.connection.create(socket, { protocol: 'spdy', isServer, autoSpdy31: false })
  connection.start(Number(version))
  connection.on('error', () => {})
  return connection
}

// Streams of bodies: spdy-transport sends a chunk for each write.
function send (stream, length) {
  for (let at = 0; at < length; at += 16384) stream.write(pattern(at, Math.min(16384, length - at)))
  stream.end()
}

function serve () {
  const { CERT, KEY } = process.env
  const create = CERT
    ? (serveSocket) => tls.createServer({ cert: fs.readFileSync(CERT), key: fs.readFileSync(KEY), ALPNProtocols }, serveSocket)
    : net.createServer
  const server = create((socket) => {
    socket.on('error', () => {})
    const connection = session(socket, true)
    const initial = {}
    const ended = []
    connection.on('frame', (frame) => {
      if (frame.type === 'SETTINGS') Object.assign(initial, frame.settings)
      if (frame.type === 'DATA' && frame.fin) ended.push(frame.id)
    })
    connection.on('stream', (stream) => {
      stream.on('error', () => {})
      answer(connection, stream, initial, ended)
    })
  })
  server.on('tlsClientError', (error) => process.stderr.write(`${error}\n`))
  server.listen(0, '127.0.0.1', () => process.stdout.write(`127.0.0.1:${server.address().port}\n`))
}

function answer (connection, stream, initial, ended) {
  const headers = { 'content-type': 'application/octet-stream', 'set-cookie': ['a=1', 'b=2'] }
  const finish = (text) => { stream.respond(200, headers); stream.end(text) }
  const length = /^\/bytes\/(\d+)$/.exec(stream.path)
  if (length) {
    stream.respond(200, headers)
    return send(stream, Number(length[1]))
  }
  switch (stream.path) {
    case '/echo': return echo(stream, headers)
    case '/reset': return stream.abort('CANCEL')
    case '/priority':
      // The library turns the three bits into a weight.
      return finish(String(weightToPriority(stream._spdyState.priority.weight)))
    case '/order':
      // Answers would not tell: the library packs their headers on other threads, however long that takes.
      return finish(ended.join(' '))
    case '/ping':
      return connection.ping(() => finish('done'))
    case '/goaway':
      // The library drops what waits behind its GOAWAY.
      stream.on('close', () => connection.end())
      return finish('done')
    case '/push':
      return stream.pushPromise({ path: '/bytes/10000', host: stream.host, status: 200, scheme: 'http', headers: {}, response: headers },
        (error, push) => {
          if (error) return fail(error)
          push.on('error', () => {})
          send(push, 10000)
          finish('done')
        })
    default:
      stream.respond(404, headers)
      stream.end('none')
  }
}

function echo (stream, headers) {
  let got = 0
  let good = true
  stream.respond(200, headers)
  stream.on('data', (data) => {
    good = good && fits(got, data)
    got += data.length
  })
  stream.on('end', () => stream.end(good ? `ok ${got}` : 'bad'))
}

// A request; resolves with status, headers and body, or with the error that ended it.
function ask (connection, method, path, length, extra) {
  return new Promise((resolve) => {
    const stream = connection.request(Object.assign({ method, path, host: 'example.org', headers: {} }, extra))
    const answer = { stream, pushes: [], chunks: [], status: 0 }
    const done = (error) => resolve(Object.assign(answer, { error, body: Buffer.concat(answer.chunks) }))
    stream.on('response', (status, headers) => Object.assign(answer, { status, headers }))
    stream.on('data', (data) => {
      answer.chunks.push(data)
      if (extra && extra.onData) extra.onData(stream)
    })
    stream.on('end', () => done())
    stream.on('error', done)
    stream.on('close', () => done(new Error('closed')))
    stream.on('pushPromise', (push) => answer.pushes.push(received(push)))
    if (method === 'POST') send(stream, length)
  })
}

function received (push) {
  return new Promise((resolve) => {
    const chunks = []
    push.on('data', (data) => chunks.push(data))
    push.on('end', () => resolve({ path: push.path, body: Buffer.concat(chunks) }))
    push.on('error', fail)
  })
}

async function expectBytes (connection, length, extra) {
  const answer = await ask(connection, 'GET', `/bytes/${length}`, 0, extra)
  check(answer.status === 200 && answer.body.length === length && fits(0, answer.body),
    `${length} bytes wanted: ${answer.status} ${answer.body.length} ${answer.error}`)
  return answer
}

async function expectText (connection, method, path, length, text, extra) {
  const answer = await ask(connection, method, path, length, extra)
  check(answer.status === 200 && answer.body.toString() === text, `${text} wanted: ${answer.status} ${answer.body} ${answer.error}`)
  return answer
}

// The three bits of a priority, as the library's weight.
function weight (priority) {
  return { priority: { parent: 0, exclusive: false, weight: priorityToWeight(priority) } }
}

const cases = {
  async get (connection) {
    const answer = await expectBytes(connection, 1000)
    check(String(answer.headers['set-cookie']) === 'a=1,b=2' && Array.isArray(answer.headers['set-cookie']), 'two cookies')
  },
  post: (connection) => expectText(connection, 'POST', '/echo', 1000000, 'ok 1000000'),
  bodies: (connection) => Promise.all([
    expectText(connection, 'POST', '/echo', 5000000, 'ok 5000000'),
    expectBytes(connection, 5000000)
  ]),
  concurrent: (connection) => Promise.all(Array.from({ length: 200 }, () => expectBytes(connection, 10000))),
  async push (connection) {
    const answer = await expectText(connection, 'GET', '/push', 0, 'done')
    check(answer.pushes.length === 1, 'one push')
    const push = await answer.pushes[0]
    check(push.path === '/bytes/10000' && push.body.length === 10000 && fits(0, push.body), `push: ${push.path} ${push.body.length}`)
  },
  async reset (connection) {
    const answer = await ask(connection, 'GET', '/reset', 0)
    check(answer.status === 0 && answer.error, 'reset by the server')
    await ask(connection, 'GET', '/bytes/5000000', 0, { onData: (stream) => stream.abort() })
    await expectBytes(connection, 1000)
  },
  ping: (connection) => new Promise((resolve) => connection.ping(resolve)),
  async goaway (connection) {
    const goaway = new Promise((resolve) => connection.on('frame', (frame) => {
      if (frame.type === 'GOAWAY') resolve(frame)
    }))
    await expectText(connection, 'GET', '/goaway', 0, 'done')
    const frame = await goaway
    check(frame.lastId === 1 && frame.code === 'OK', `goaway ${frame.lastId} ${frame.code}`)
  },
  // What breaks off in the midst of its body, then one of our own; the session goes on.
  async cut (connection) {
    const answer = await ask(connection, 'GET', '/cut', 0)
    check(answer.status === 200 && answer.error && answer.body.length < 100000, `cut: ${answer.status} ${answer.body.length} ${answer.error}`)
    await ask(connection, 'GET', '/bytes/5000000', 0, { onData: (stream) => stream.abort() })
    await expectBytes(connection, 1000)
  },
  // The gateway is told to end in the midst of a body, which comes to its end all the same.
  async leave (connection) {
    const goaway = new Promise((resolve) => connection.on('frame', (frame) => {
      if (frame.type === 'GOAWAY') resolve(frame)
    }))
    let told = false
    const onData = () => {
      if (!told) process.kill(Number(process.env.GATEWAY), 'SIGTERM')
      told = true
    }
    await expectBytes(connection, 5000000, { onData })
    const frame = await goaway
    check(frame.lastId === 1 && frame.code === 'OK', `goaway ${frame.lastId} ${frame.code}`)
  },
  async settings (connection) {
    const settings = new Promise((resolve) => connection.on('frame', (frame) => {
      if (frame.type === 'SETTINGS') resolve(frame.settings)
    }))
    await expectBytes(connection, 10)
    const seen = await settings
    check(seen.initial_window_size > 65536 && seen.max_concurrent_streams >= 100, JSON.stringify(seen))
  },
  async priorities (connection) {
    await expectText(connection, 'GET', '/priority', 0, '0', weight(0))
    await expectText(connection, 'GET', '/priority', 0, '7', weight(7))
    const order = []
    await Promise.all([
      expectBytes(connection, 5000000, weight(7)).then(() => order.push('large')),
      expectBytes(connection, 1000, weight(0)).then(() => order.push('small'))
    ])
    check(order[0] === 'small', 'the large body came first')
  },
  async many (connection) {
    for (let round = 0; round < 100; round++) {
      await Promise.all(Array.from({ length: 100 }, () => expectBytes(connection, 100)))
    }
  }
}

function client () {
  const [host, port] = address.split(':')
  const { CA } = process.env
  const connect = CA
    ? (done) => tls.connect({ host, port: Number(port), ca: fs.readFileSync(CA), ALPNProtocols }, done)
    : (done) => net.connect(Number(port), host, done)
  const socket = connect(() => {
    const connection = session(socket, false)
    cases[name](connection).then(() => process.exit(0), fail)
  })
  socket.on('error', fail)
}

if (mode === 'serve') serve()
else client()
