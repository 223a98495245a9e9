/**
 * `make demo`: one message from an agent session on one host to a session on another, and the answer back, for real.
 *
 * Two daemons with state folders, keys and ports of their own are two hosts on loopback; the sessions are stand-ins for Claude Code, each
 * its own process. Owns the story and its bounds; prints what the daemons' own event logs and `ax admin status` say. Everything is in
 * one temporary folder; exit 1 with the reason and the logs when a step does not happen in time.
 */
import type { ChildProcess } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { Bed, BUNDLE, LAUNCHER, until } from '../e2e/hosts.ts';
import type { Host } from '../e2e/hosts.ts';
import { isAlive, launch } from '../e2e/processes.ts';
import type { Json } from '../e2e/processes.ts';
import type { StandInEvent } from '../standin/options.ts';
import type { StandIn } from '../standin/spawn.ts';
import { paragraph, say, table, Timeline } from './timeline.ts';

const STEP_LIMIT_MS = 20_000;
const QUESTION = 'The login test fails since this morning. Can you look at what changed in your folder?';
const ANSWER = 'Found it: the session cookie was renamed. Fixed here in commit 4be1d2c; please pull.';

const began = Date.now();
const bed = new Bed();
const laptop = bed.host('laptop');
const server = bed.host('server');
const timeline = new Timeline(began, [laptop.name, server.name]);
/** Message ids, by what the timeline calls them. */
const messages = new Map<string, string>();

function tell(host: Host, state: string, text: string, quoted?: readonly string[]): void {
  timeline.add({ at: Date.now(), host: host.name, state, text, ...(quoted === undefined ? {} : { quoted }) });
}

/** Fails with the step's name when it takes too long. */
async function step<T>(name: string, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${name}: not done within ${STEP_LIMIT_MS / 1000} s`)), STEP_LIMIT_MS);
  });
  try {
    return await Promise.race([work, late]);
  } catch (error) {
    throw new Error(`${name}: ${error instanceof Error ? error.message : String(error)}`, { cause: error });
  } finally {
    clearTimeout(timer);
  }
}

/** What an event of a daemon's log means, for someone who has never seen ax. */
function meaning(host: Host, event: Json): { state: string; text: string } | undefined {
  const what = messages.get(String(event['message_id'])) ?? 'message';
  const other = host === laptop ? server.name : laptop.name;
  switch (event['type']) {
    case 'message.queued':
      return { state: 'queued', text: `${what}: durable in the outbox of ${host.name}; the command that sent it has its answer` };
    case 'message.received':
      return event['state'] === 'awaiting_setup'
        ? {
            state: 'awaiting_setup',
            text: `${what}: stored on ${host.name}; no agent is set up for that folder yet, so nobody can read it`,
          }
        : { state: String(event['state']), text: `${what}: stored on ${host.name} for its agent; nobody has read it` };
    case 'message.accepted':
      return { state: 'accepted', text: `${what}: the signed receipt of ${other} has come: it is stored there, once` };
    case 'message.available':
      return { state: 'available', text: `${what}: the agent of that folder is set up now and may pick it up` };
    case 'message.handed_out':
      return { state: 'handed out', text: `${what}: the body went to the session, which has not confirmed it yet` };
    case 'message.fetched':
      return host.name === (what === 'question' ? server.name : laptop.name)
        ? { state: 'fetched', text: `${what}: the session has the whole body, and said so` }
        : { state: 'fetched', text: `${what}: the signed pickup receipt of ${other} has come: delivered` };
    default:
      return undefined; // pairing, sessions and notices are told from their own source
  }
}

/** The commands that follow a log; they end before their daemons do. */
const followers: ChildProcess[] = [];

/** Follows a daemon's event log with the real command, into the timeline. */
function follow(host: Host): void {
  const child = launch(process.execPath, [BUNDLE, 'admin', 'events', '--follow', '--since', '0', '--format', 'json'], {
    env: host.env,
    cwd: host.home,
  });
  followers.push(child);
  if (child.stdout === null) return;
  createInterface({ input: child.stdout }).on('line', (line) => {
    const { event } = JSON.parse(line) as { event?: Json };
    if (event === undefined) return; // the end of the log, told as an error: a step that misses its daemon fails by itself
    // The id of a message becomes known to us a moment after the log tells of it.
    setTimeout(() => {
      const shown = meaning(host, event);
      if (shown !== undefined) timeline.add({ at: Date.parse(String(event['at'])), host: host.name, ...shown });
    }, 100);
  });
}

/** A command as typed, without the path of this checkout. */
function short(command: string): string {
  return command.replaceAll(LAUNCHER, 'ax');
}

/** Tells what a session sees and does, as it happens. */
function watch(host: Host, session: StandIn): void {
  let seen = 0;
  const timer = setInterval(() => {
    for (const event of session.events.slice(seen)) show(host, event);
    seen = session.events.length;
  }, 20);
  timer.unref();
}

function show(host: Host, event: StandInEvent): void {
  const add = (state: string, text: string, quoted?: readonly string[]): void =>
    timeline.add({ at: event.at, host: host.name, state, text, ...(quoted === undefined ? {} : { quoted }) });
  if (event.event === 'frame') {
    add(
      'notice',
      `appears in the conversation by itself; no word of it is the sender's${event.decision === 'queued' ? '' : ` (${event.decision})`}. The session sees:`,
      event.content.split('\n'),
    );
  } else if (event.event === 'ran') {
    const lines = event.stdout.trimEnd().split('\n');
    const isFetch = event.command.includes(' messages fetch ');
    add(
      'session ran',
      `${short(event.command)}${event.exit === 0 ? '' : ` (exit status ${event.exit}: ${event.stderr.trim()})`}`,
      isFetch ? lines : undefined,
    );
    const reply = / messages reply /.test(event.command) ? /\b[0-9a-z]{26}\b/.exec(event.stdout)?.[0] : undefined;
    if (reply !== undefined) messages.set(reply, 'answer');
  }
}

async function pairHosts(): Promise<void> {
  await step('start two daemons', Promise.all([laptop.start(), server.start()]));
  for (const host of [laptop, server])
    tell(host, 'daemon ready', `listens on ${host.listen.join(', ')}; host id ${host.hostId.slice(0, 14)}...`);
  const invite = await step('invite', server.ok(['host', 'invite']));
  tell(server, 'invite', `ax host invite: a code that works once, ${String(invite['code']).slice(0, 20)}...`);
  await step('join', laptop.ok(['host', 'join', '-'], { stdin: `${String(invite['code'])}\n` }));
  await step('both hosts see each other', Promise.all([laptop.untilUp(server), server.untilUp(laptop)]));
  tell(laptop, 'paired', 'ax host join: each host now knows the other by its key');
}

async function openSessions(): Promise<{ planner: StandIn; worker: StandIn }> {
  const planner = await step('session on the first host', laptop.session(laptop.workspace('website')));
  watch(laptop, planner);
  tell(laptop, 'session', 'a Claude Code session (stand-in) works in the folder website');
  const worker = await step('session on the second host', server.session(server.workspace('backend'), { reply: ANSWER }));
  tell(server, 'session', 'another one works in the folder backend; it knows nothing of ax');
  watch(server, worker);
  await run(planner, `${LAUNCHER} agent setup --name planner --workspace ${planner.options.cwd}`);
  return { planner, worker };
}

/** The session's shell tool runs a command; its output. */
async function run(session: StandIn, command: string): Promise<string> {
  const since = session.events.length;
  await step(short(command), session.send({ cmd: 'run', command }));
  const ran = await session.next('ran', since);
  if (ran.exit !== 0) throw new Error(`${short(command)} ended with exit status ${ran.exit}: ${ran.stderr}`);
  return ran.stdout;
}

async function exchange(planner: StandIn, worker: StandIn): Promise<void> {
  timeline.heading('The session on laptop sends a question to the session on server, and does not wait');
  const words = ['send', '--host', server.name, '--session', worker.sessionId, '--harness', 'claude', '--message', `'${QUESTION}'`];
  const printed = await run(planner, [LAUNCHER, ...words].join(' '));
  const question = /\b[0-9a-z]{26}\b/.exec(printed)?.[0] ?? '';
  messages.set(question, 'question');
  await step('the question is fetched, and its sender knows', laptop.untilStatus(question, { state: 'fetched' }));
  timeline.heading('The answer travels back the same way, to the agent planner');
  await step(
    'the answer is sent',
    until('the answer', async () => [...messages.values()].includes('answer') || 'no reply yet'),
  );
  const answer = [...messages].find(([, what]) => what === 'answer')?.[0] ?? '';
  await step('the answer is fetched, and its sender knows', server.untilStatus(answer, { state: 'fetched' }));
  await step(
    'the answer was printed',
    planner.until((event) => event.event === 'ran' && event.stdout.includes(ANSWER)),
  );
}

async function summary(): Promise<void> {
  const rows = [['MESSAGE', 'ID', `ON ${laptop.name.toUpperCase()}`, `ON ${server.name.toUpperCase()}`]];
  for (const [id, what] of messages) {
    const sides = await Promise.all([laptop, server].map((host) => host.status(id)));
    if (sides.some((side) => side['state'] !== 'fetched'))
      throw new Error(`the ${what} is not fetched on both sides: ${JSON.stringify(sides)}`);
    rows.push([what, id, ...sides.map((side) => `${String(side['side'])}: ${String(side['state'])}`)]);
  }
  say();
  say('What `ax admin status ID` says at the end:');
  say();
  table(rows);
  say();
}

async function main(): Promise<void> {
  say('ax demo: an agent session on one host asks a session on another, and gets its answer.');
  say();
  paragraph(
    'Two ax daemons on this machine play two hosts, "laptop" and "server": each has its own key, store and port, and they talk over the ' +
      'real, encrypted peer protocol. The two Claude Code sessions are stand-ins, each its own process: they behave as Claude Code does ' +
      `towards ax, and run the ax commands that they are told to run. All files are in ${bed.folder}.`,
  );
  say();
  timeline.header();
  timeline.heading('Two hosts meet');
  await pairHosts();
  timeline.heading('Two sessions start; the one on laptop sets itself up as the agent "planner"');
  const { planner, worker } = await openSessions();
  follow(laptop);
  follow(server);
  await exchange(planner, worker);
  // The last lines of the two logs are on their way.
  await new Promise((resolve) => setTimeout(resolve, 400));
  for (const child of followers) child.kill('SIGKILL');
  timeline.end();
  await summary();
  const pids = [laptop.pid, server.pid, planner.pid, worker.pid];
  await step('stop', Promise.all([planner.stop(), worker.stop(), laptop.stop(), server.stop()]));
  await bed.end();
  const left = pids.filter(isAlive);
  if (left.length > 0 || existsSync(bed.folder))
    throw new Error(`left behind: processes ${left.join(', ') || 'none'}, folder ${existsSync(bed.folder) ? bed.folder : 'none'}`);
  say(`Done in ${((Date.now() - began) / 1000).toFixed(1)} s. No process and no file was left behind.`);
}

/** Ends everything, with the reason and all logs. */
async function fail(error: unknown): Promise<never> {
  timeline.end();
  say();
  say(`The demo failed: ${error instanceof Error ? error.message : String(error)}`);
  for (const host of bed.hosts) say(`\nlog of ${host.name}:\n${host.log.trimEnd() || '(empty)'}`);
  for (const session of bed.sessions) {
    const last = session.events.slice(-5).map((event) => JSON.stringify(event));
    say(`\nlast events of the session in ${'cwd' in session.options ? session.options.cwd : session.options.home}:\n${last.join('\n')}`);
  }
  await bed.end();
  process.exit(1);
}

process.on('uncaughtException', (error) => void fail(error));
main().then(() => process.exit(0), fail);
