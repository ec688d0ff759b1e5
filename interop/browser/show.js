// Firefox on one page until it is told to end, for interop/browser.sh.
//
//   node show.js PROFILE PROXY URL
'use strict';
const { Browser } = require('./firefox');

const [profile, proxy, url] = process.argv.slice(2);
const browser = new Browser(proxy, profile);

process.on('SIGTERM', () => browser.process.kill());
browser.process.on('exit', () => process.exit());
browser.page().then((page) => page.open(url)).catch((error) => console.log(error.message));
