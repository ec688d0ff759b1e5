// The dashboard's script: it polls the overview once a second while the page is visible, and shows
// it. Data is shown as text only, and no request leaves this address.
'use strict';

const PERIOD_MS = 1000;
const PATIENCE_MS = 10000;
const byId = (id) => document.getElementById(id);

/** Returns a new element with a text and a class. */
function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

/** Sets the text of a node only if it differs, so that a selection and live regions stay calm. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function seconds(value) {
  if (value === null || value === undefined) return '–';
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(2)} s`;
}

function bytes(value) {
  if (value < 1000) return `${value} B`;
  if (value < 1e6) return `${(value / 1e3).toFixed(1)} kB`;
  return `${(value / 1e6).toFixed(1)} MB`;
}

function rate(value) {
  if (value === null) return '–';
  const bits = value * 8;
  return bits < 1e9 ? `${(bits / 1e6).toFixed(1)} Mbit/s` : `${(bits / 1e9).toFixed(1)} Gbit/s`;
}

function age(value) {
  if (value < 60) return `${Math.floor(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
}

/** Shows a list of [name, text] pairs, and keeps the elements between two calls. */
function showPairs(list, pairs) {
  while (list.children.length > pairs.length) list.lastElementChild.remove();
  pairs.forEach(([name, text], at) => {
    let group = list.children[at];
    if (!group) {
      group = element('div');
      group.append(element('dt'), element('dd'));
      list.append(group);
    }
    setText(group.children[0], name);
    setText(group.children[1], text);
  });
}

function showProblems(problems) {
  const list = byId('problems');
  const texts = problems.length > 0 ? problems : ['There are no problems.'];
  const shown = Array.from(list.children, (item) => item.textContent);
  if (shown.join('\n') === texts.join('\n')) return;
  list.className = problems.length > 0 ? 'bad' : '';
  list.replaceChildren(...texts.map((text) => element('li', text)));
}

/** Shows the work of a gateway's push and of its cache. */
function showGatewaySavings({ status }) {
  const { counters } = status;
  const answered = counters.cache_hits + counters.cache_collapsed;
  const asked = answered + counters.cache_misses;
  const text =
    asked > 0
      ? `The cache answered ${answered} of ${asked} requests (${Math.round((100 * answered) / asked)} %).`
      : 'The cache has answered no request, or it is off (--cache).';
  setText(byId('saving'), text);
  showPairs(byId('figures'), [
    ['Requests', String(counters.exchanges)],
    ['Requests under way', String(counters.exchanges_open)],
    ['Requests that failed', String(counters.exchanges_failed)],
    ['Requests without admission', String(counters.unauthorized)],
    ['Responses confirmed by origins', String(counters.cache_validations)],
    ['Bytes from the cache', bytes(counters.cache_bytes)],
    ['Pages not held out', String(counters.pages_pushed)],
    ['Pages held out for comparison', String(counters.pages_held_out)],
    ['Resources offered as pushes', String(counters.pushes_promised)],
    ['Bytes fetched for pushes', bytes(counters.push_bytes_sent)],
  ]);
}

/** Shows the numbers of a gateway that takes submissions, and those of an issuer. */
function showSubmissions({ status, role }) {
  const { counters } = status;
  byId('submitted').hidden = counters.submission_store === 0;
  byId('issued').hidden = role !== 'issuer';
  const commits = counters.submission_commits;
  const latency = commits > 0 ? seconds(counters.submission_commit_us / commits / 1e6) : '–';
  const batches = counters.submission_batches;
  const members = batches > 0 ? (counters.submission_batch_members / batches).toFixed(1) : '–';
  const oldest = counters.submissions_waiting > 0 ? age(counters.submissions_oldest_seconds) : '–';
  showPairs(byId('submissions'), [
    ['Waiting for an answer', String(counters.submissions_waiting)],
    ['Age of the oldest', oldest],
    ['Waiting for their batch', String(counters.submissions_collected)],
    ['Delivered since the start', String(counters.submissions_answered)],
    ['Given up since the start', String(counters.submissions_given_up)],
    ['Attempts that failed', String(counters.submissions_failed_attempts)],
    ['Members of the last batch', String(counters.submission_batch_size)],
    ['Mean of the members', members],
    ['Batches that were too small', String(counters.submission_batches_small)],
    ['Tokens spent in the latest epoch', String(counters.tokens_spent_latest)],
    ['Tokens spent in the epoch before', String(counters.tokens_spent_before)],
    ['Refused', String(counters.submissions_refused)],
    ['Refused at the limit of rights', String(counters.submissions_over_quota)],
    ['Refused for lack of memory', String(counters.submissions_over_memory)],
    ['Refused because the store was full', String(counters.submissions_over_store)],
    ['Mean time of a commit', latency],
    ['Bytes in the store', bytes(counters.submissions_stored_bytes)],
  ]);
  showPairs(byId('tokens'), [
    ['Accounts', String(counters.issuer_accounts)],
    ['Tokens of the present epoch', String(counters.tokens_issued_epoch)],
    ['Tokens since the start', String(counters.tokens_issued)],
    ['Refused', String(counters.token_requests_refused)],
    ['Refused at the limit of an account', String(counters.token_requests_over_quota)],
  ]);
}

function showSavings({ saving, status }) {
  const { counters } = status;
  const text =
    `${saving.summary} Page loads with push: ${saving.loads_pushed} (mean ${seconds(saving.mean_pushed)}), ` +
    `without push for comparison: ${saving.loads_held_out} (mean ${seconds(saving.mean_held_out)}).`;
  setText(byId('saving'), text);
  showPairs(byId('figures'), [
    ['Round trips saved', String(counters.round_trips_saved)],
    ['Pushes complete when requested', String(counters.pushes_used)],
    ['Pushes requested in transit', String(counters.pushes_late)],
    ['Pushes wasted', String(counters.pushes_wasted)],
    ['Pushed bytes used', bytes(counters.push_bytes_used)],
    ['Pushed bytes wasted', bytes(counters.push_bytes_wasted)],
  ]);
}

/** Shows the sessions: those of a client to gateways and sites, and those of a gateway's clients. */
function showSessions({ status, role, left_out: leftOut }) {
  const isShown = (session) => session.opened === (role === 'client' ? 'here' : 'there');
  const other = role === 'client' ? 'sites, without a gateway' : 'a client';
  const shown = status.sessions.filter(isShown);
  const rows = shown
    .map((session) => [
      session.gateway ?? other,
      session.protocol ?? '–',
      seconds(session.round_trip),
      rate(session.rate),
      session.exchanges === null ? '–' : String(session.exchanges),
      age(session.age),
    ]);
  const others = status.sessions.length - shown.length + leftOut.others;
  const kind = role === 'client' ? 'connections from browsers' : 'other connections';
  const rest = [
    [leftOut.sessions, 'more sessions'],
    [others, kind],
  ].filter(([count]) => count > 0);
  const counts = rest.map(([count, name]) => `${count} ${name}`).join(' and ');
  setText(byId('rest'), counts === '' ? '' : `Besides, there are ${counts}.`);
  if (rows.length === 0) rows.push(['No session is open.', '', '', '', '', '']);
  const body = byId('sessions');
  while (body.children.length > rows.length) body.lastElementChild.remove();
  rows.forEach((texts, at) => {
    let row = body.children[at];
    if (!row) {
      row = element('tr');
      for (let column = 0; column < 6; column += 1) {
        row.append(element('td', '', column > 1 ? 'number' : ''));
      }
      body.append(row);
    }
    for (let column = 0; column < 6; column += 1) setText(row.children[column], texts[column]);
  });
}

const SUPPLIES = {
  requested: 'requested',
  joined: 'joined a push',
  pushed: 'pushed',
  stored: 'from the cache',
  tunnel: 'tunnelled',
};

/** Adds a part of a bar. Positions are fractions of the whole load. */
function addPart(bar, from, to, whole, className) {
  const part = element('span', undefined, className);
  const share = (time) => 100 * Math.min(Math.max(time / whole, 0), 1);
  part.style.left = `${share(from)}%`;
  part.style.width = `${share(to) - share(from)}%`;
  bar.append(part);
}

function resourceRow(resource, whole) {
  const row = element('tr');
  row.append(element('td', `${resource.method} ${resource.url}`));
  row.append(element('td', SUPPLIES[resource.supply] ?? resource.supply, `${resource.supply} number short`));
  const status = resource.problem ?? (resource.status === null ? 'waiting' : String(resource.status));
  row.append(element('td', status, resource.problem || resource.status >= 400 ? 'failed short' : 'short'));
  row.append(element('td', resource.end === null ? '–' : bytes(resource.bytes), 'number short'));
  const end = resource.end ?? whole;
  const head = resource.head ?? end;
  const cell = element('td', undefined, 'time');
  const times = `from ${seconds(resource.start)} to ${resource.end === null ? 'now' : seconds(end)}`;
  cell.append(element('span', times));
  const bar = element('div', undefined, 'bar');
  bar.setAttribute('aria-hidden', 'true');
  addPart(bar, resource.start, head, whole, `wait ${resource.supply}`);
  addPart(bar, head, end, whole, resource.supply);
  cell.append(bar);
  row.append(cell);
  return row;
}

function fillLoad(details, load) {
  const counts = Object.keys(SUPPLIES)
    .map((supply) => [supply, load.resources.filter((it) => it.supply === supply).length])
    .filter(([, count]) => count > 0)
    .map(([supply, count]) => `${count} ${SUPPLIES[supply]}`);
  const size = load.resources.reduce((sum, resource) => sum + resource.bytes, 0);
  const result = load.duration === null ? 'loading' : `${seconds(load.duration)} · ${bytes(size)}`;
  const summary = `${details.began} · ${load.title} · ${result} · ${counts.join(', ')}`;
  setText(details.children[0], summary);
  const body = details.querySelector('tbody');
  // Tunnels and streams may stay open long after the page, so their bars are cut at its end.
  const plain = load.resources.filter((resource) => resource.supply !== 'tunnel' && !resource.is_stream);
  const timed = plain.length > 0 ? plain : load.resources;
  const open = timed.some((resource) => resource.end === null);
  const shown = timed.map((resource) => resource.head ?? resource.start);
  const whole = Math.max(0.001, load.duration ?? 0, ...shown, open ? Math.min(load.age, 60) : 0);
  body.replaceChildren(...load.resources.map((resource) => resourceRow(resource, whole)));
  setText(
    details.children[2],
    load.left_out > 0 ? `${load.left_out} more resources are not shown.` : '',
  );
}

function newLoad(load) {
  const details = element('details');
  details.dataset.number = String(load.number);
  details.began = new Date(Date.now() - load.age * 1000).toLocaleTimeString();
  const table = element('table', undefined, 'resources');
  const head = element('thead');
  const row = element('tr');
  for (const name of ['Resource', 'Supply', 'Status', 'Bytes', 'Time']) {
    const cell = element('th', name);
    cell.scope = 'col';
    row.append(cell);
  }
  head.append(row);
  table.append(head, element('tbody'));
  details.append(element('summary'), table, element('p'));
  return details;
}

/** Shows the changed loads. The elements of known ones stay, so that open ones remain open. */
function showLoads(kept, loads) {
  const list = byId('loads');
  const known = new Map(Array.from(list.children, (child) => [child.dataset.number, child]));
  for (const load of loads) {
    const number = String(load.number);
    if (!known.has(number)) known.set(number, newLoad(load));
    fillLoad(known.get(number), load);
  }
  const wanted = kept.map((number) => known.get(String(number))).filter((details) => details);
  const present = new Set(wanted);
  for (const child of Array.from(list.children)) {
    if (!present.has(child)) child.remove();
  }
  wanted.forEach((details, at) => {
    // An element that moves would lose the focus.
    if (list.children[at] !== details) list.insertBefore(details, list.children[at] ?? null);
  });
  if (list.children.length === 0) list.append(element('p', 'No page was loaded yet.'));
}

function show(overview) {
  setText(byId('role'), overview.role);
  setText(byId('about'), `Version ${overview.version}, running for ${age(overview.status.uptime)}`);
  document.title = `${overview.problems.length > 0 ? '⚠ ' : ''}Tandem ${overview.role}`;
  const isClient = overview.role === 'client';
  byId('recent').hidden = !isClient;
  byId('ways').hidden = !isClient;
  showProblems(overview.problems);
  if (isClient) showSavings(overview);
  else showGatewaySavings(overview);
  byId('savings').hidden = overview.role === 'issuer' || overview.status.counters.submission_store > 0;
  showSubmissions(overview);
  showPairs(byId('routes'), overview.routes.map(({ hosts, way }) => [hosts, way]));
  showSessions(overview);
  showLoads(overview.kept, overview.loads);
  const counters = Object.entries(overview.status.counters);
  showPairs(byId('counters'), counters.map(([name, value]) => [name, String(value)]));
}

async function get(path, key) {
  const response = await fetch(path, {
    headers: { Authorization: `Bearer ${key}` },
    cache: 'no-store',
    credentials: 'omit',
    redirect: 'error',
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  if (response.status === 401) throw new Error('key');
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response.json();
}

/** The code of the address, until it was exchanged for the key or refused. */
let code = '';

/** Returns whether there is a code to exchange. */
function hasCode() {
  if (location.hash !== '') {
    code = location.hash.slice(1);
    history.replaceState(null, '', '/');
  }
  return code !== '';
}

/** Exchanges the code for the key. Without an answer, the code stays for the next attempt. */
async function keyOfProcess() {
  if (hasCode()) {
    try {
      const { key } = await get('/session', code);
      sessionStorage.setItem('key', key);
      code = '';
    } catch (error) {
      if (error.message === 'key') code = '';
      throw error;
    }
  }
  return sessionStorage.getItem('key');
}

async function run() {
  const state = byId('state');
  let key = null;
  let revision = 0;
  for (;;) {
    if (!document.hidden) {
      try {
        if (key === null || hasCode()) {
          const found = await keyOfProcess();
          if (found !== key) {
            // Another process counts its page loads from 1 again.
            byId('loads').replaceChildren();
            revision = 0;
          }
          key = found;
        }
        if (key === null) throw new Error('key');
        const overview = await get(`/overview?revision=${revision}`, key);
        revision = overview.revision;
        show(overview);
        setText(state, '');
      } catch (error) {
        revision = 0;
        if (error.message === 'key') {
          key = null;
          setText(state, 'This address is out of date. Open the dashboard with "tandem open".');
        } else {
          setText(state, 'Tandem does not answer. It may have stopped.');
        }
      }
    }
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
  }
}

run();
