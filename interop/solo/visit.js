// Of interop/solo.sh.
//
//   visit.js files DIRECTORY             writes a page and its 300 resources
//   visit.js relay PORT                  relays to that port of this host, 30 ms later in each direction; writes its address
//   visit.js load PROXY ORIGIN DIRECTORY loads the page as a browser does, over six connections to the proxy, and checks each byte
'use strict';
const fs = require('fs');
const http = require('http');
const net = require('net');
const path = require('path');

const RESOURCES = 300;
const DELAY = 30;

function writeFiles(directory) {
    const sizes = [0, 200, 2000, 9000, 40000];
    const page = ['<!doctype html><title>page</title>'];
    for (let at = 0; at < RESOURCES; at++) {
        const size = sizes[at % sizes.length] + at;
        fs.writeFileSync(path.join(directory, `${at}.png`), `${at}|`.repeat(size).slice(0, size));
        page.push(`<img src="/${at}.png">`);
    }
    fs.writeFileSync(path.join(directory, 'page.html'), page.join('\n'));
}

// Passes data and the end on, each after the delay. Equal delays keep the order.
function pump(from, to) {
    from.on('data', (data) => setTimeout(() => to.writable && to.write(data), DELAY));
    from.on('end', () => setTimeout(() => to.end(), DELAY));
    from.on('close', () => setTimeout(() => to.destroy(), DELAY));
    from.on('error', () => {});
}

function relay(port) {
    const server = net.createServer({ allowHalfOpen: true }, (near) => {
        near.setNoDelay(true);
        near.pause();
        setTimeout(() => {
            const far = net.connect({ port, host: '127.0.0.1', allowHalfOpen: true }, () => {
                far.setNoDelay(true);
                pump(near, far);
                pump(far, near);
                near.resume();
            });
            far.on('error', () => near.destroy());
        }, DELAY);
    });
    server.listen(0, '127.0.0.1', () => console.log(`127.0.0.1:${server.address().port}`));
}

function get(agent, proxy, origin, file, accept) {
    const [host, port] = proxy.split(':');
    const headers = { Host: origin, Accept: accept };
    return new Promise((done, fail) => {
        const request = http.get({ agent, host, port, path: `http://${origin}/${file}`, headers }, (response) => {
            const parts = [];
            response.on('data', (part) => parts.push(part));
            response.on('error', fail);
            response.on('end', () => done({ status: response.statusCode, body: Buffer.concat(parts) }));
        });
        request.on('error', fail);
    });
}

async function load(proxy, origin, directory) {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 6 });
    const check = async (file, accept) => {
        const { status, body } = await get(agent, proxy, origin, file, accept);
        if (status !== 200) throw new Error(`${file}: status ${status}`);
        if (!body.equals(fs.readFileSync(path.join(directory, file)))) throw new Error(`${file}: wrong bytes`);
    };
    const began = Date.now();
    await check('page.html', 'text/html,*/*');
    const files = Array.from({ length: RESOURCES }, (_, at) => `${at}.png`);
    await Promise.all(files.map((file) => check(file, 'image/png,*/*')));
    agent.destroy();
    console.log(`${Date.now() - began} ms`);
}

const [command, ...rest] = process.argv.slice(2);
if (command === 'files') writeFiles(rest[0]);
else if (command === 'relay') relay(Number(rest[0]));
else
    load(...rest).catch((error) => {
        console.error(error.message);
        process.exit(1);
    });
