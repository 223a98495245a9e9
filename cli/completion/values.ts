/**
 * The values that only the daemon knows: hosts, agents, sessions, ids of messages.
 *
 * Owns the bound on the wait and what may become a word of somebody's command line. Most of it was named by other hosts.
 * Invariant: a value is plain characters that no shell gives a meaning to, and no option; anything else is left out, never quoted. A daemon
 * that is down or slow gives nothing, and none is ever started.
 */
import type { AgentRow, HostRow, MessageRow, Method, SessionHost } from '../../protocol/control.ts';
import { call } from '../client.ts';
import type { Environment } from '../environment.ts';
import { visible } from '../output.ts';
import { stopwatch } from '../wait.ts';
import type { Candidate, Position } from './position.ts';

/** Longest wait for the daemon, ms: somebody has just pressed a key. */
export const QUICK_MS = 300;
const ROWS = 50;
const MAX_HOSTS = 16;
/** What a shell takes as it is, in every place of a line but its beginning; a leading `-` would be an option. */
const PLAIN = /^[A-Za-z0-9_./:@+][A-Za-z0-9_./:@+-]{0,255}$/;
const MAX_ABOUT = 60;

/** True for a value that may be put into a command line. */
export function isPlain(value: string): boolean {
  return PLAIN.test(value);
}

/** Candidates for this position, those that begin as typed. Never throws. */
export async function valuesOf(environment: Environment, { kind, host, typed }: Position): Promise<Candidate[]> {
  try {
    const found = await asked(environment, kind, host);
    return found
      .filter(({ value }) => isPlain(value) && value.startsWith(typed))
      .map(({ value, about = '' }) => ({ value, about: short(about) }));
  } catch {
    return []; // down, silent, of another version: there is nothing to complete, and nobody to tell
  }
}

type Ask = <T>(method: Method, params?: object) => Promise<T>;

async function asked(environment: Environment, kind: Position['kind'], host: string | undefined): Promise<Candidate[]> {
  const passed = stopwatch();
  const ask: Ask = (method, params = {}) => call(environment, method, params, { what: null, timeoutMs: Math.max(1, QUICK_MS - passed()) });
  switch (kind) {
    case 'hosts': {
      const { hosts } = await ask<{ hosts: HostRow[] }>('host.list');
      return [...hosts.map((row) => ({ value: row.name, about: row.state })), { value: 'Localhost', about: 'this host' }];
    }
    case 'agents':
      return (await agentsHere(ask)).map((row) => ({ value: row.name, about: `${row.harness} in ${row.workspace}` }));
    case 'addresses': {
      const [agents, hosts] = await Promise.all([agentsHere(ask), sessionsOf(ask, undefined)]);
      const own = agents.map((row) => ({ value: `${row.name}@Localhost`, about: `${row.harness} in ${row.workspace}` }));
      return unique([...own, ...hosts.flatMap(agentsOf)]);
    }
    case 'sessions':
      return (await sessionsOf(ask, host)).flatMap((at) =>
        at.sessions.map((row) => ({ value: row.session_id, about: `${row.harness} in ${row.workspace} on ${at.host}` })),
      );
    case 'messages': {
      const [here, sent] = await Promise.all(
        [false, true].map((isSent) => ask<{ messages: MessageRow[] }>('message.list', listing(isSent))),
      );
      return unique([...rows(here?.messages ?? []), ...rows(sent?.messages ?? [])]);
    }
    case 'received':
      return rows((await ask<{ messages: MessageRow[] }>('message.list', listing(false))).messages);
    default:
      return [];
  }
}

async function agentsHere(ask: Ask): Promise<readonly AgentRow[]> {
  return (await ask<{ agents: AgentRow[] }>('agent.list')).agents;
}

/** Each host is asked by itself: one that is slow takes nothing from the others. */
async function sessionsOf(ask: Ask, host: string | undefined): Promise<SessionHost[]> {
  const known = host === undefined ? (await ask<{ hosts: HostRow[] }>('host.list')).hosts.filter((row) => row.state === 'up') : [];
  const wanted = host === undefined ? ['Localhost', ...known.slice(0, MAX_HOSTS).map((row) => row.host_id)] : [host];
  const answers = await Promise.allSettled(wanted.map((one) => ask<{ hosts: SessionHost[] }>('agent.sessions', { host: one })));
  return answers.flatMap((answer) => (answer.status === 'fulfilled' ? answer.value.hosts : []));
}

const listing = (sent: boolean): object => ({ limit: ROWS, ...(sent ? { sent } : {}) });

function agentsOf(at: SessionHost): Candidate[] {
  return at.sessions.flatMap((row) =>
    row.agent === null ? [] : [{ value: `${row.agent}@${at.host}`, about: `${row.harness} in ${row.workspace}` }],
  );
}

function rows(messages: readonly MessageRow[]): Candidate[] {
  return messages.map((row) => ({ value: row.message_id, about: `${row.state}, ${row.from} to ${row.to}` }));
}

function unique(candidates: readonly Candidate[]): Candidate[] {
  return [...new Map(candidates.map((one) => [one.value.toLowerCase(), one])).values()];
}

/** One line that acts on no terminal. */
export function short(text: string): string {
  const characters = Array.from(visible(text));
  return characters.length <= MAX_ABOUT ? characters.join('') : `${characters.slice(0, MAX_ABOUT - 1).join('')}…`;
}
