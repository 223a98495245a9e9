/**
 * `ax host`: who this host is, and whom it knows.
 *
 * Owns the guard-rail that the verbs which change trust refuse inside an agent's shell, and the asking for a pairing code without an
 * echo. The code is a secret: it is never printed again after `invite`.
 */
import type { Command } from 'commander';
import type { HostRow } from '../../protocol/control.ts';
import { parseHostAddress } from '../../protocol/address.ts';
import { AxError } from '../../protocol/errors.ts';
import { parseName } from '../../protocol/ids.ts';
import { DEFAULT_GRANTS, GRANT_ACTIONS } from '../../protocol/states.ts';
import { call } from '../client.ts';
import { action, asOwner, noun, verb } from '../command.ts';
import { axCommand, requireOwner } from '../environment.ts';
import { collect, durationOption, inLine, known, listOption, textOption, wholeOption } from '../options.ts';
import type { Run } from '../options.ts';
import { ago, count, note, rowsOf, table, visible } from '../output.ts';
import type { Fields } from '../output.ts';
import { awaiting } from '../wait.ts';
import { addGrants, mayHere, ruleText } from './grants.ts';

const COLUMNS = ['host_id', 'name', 'addresses', 'grants', 'state', 'last_seen_at', 'rtt_ms', 'version', 'grant_rules'];
/** Longest pairing code that is read from stdin, bytes. */
const MAX_CODE_BYTES = 8192;

const GRANT_HELP = `what this host allows the other, with commas: ${GRANT_ACTIONS.join(', ')} (default ${DEFAULT_GRANTS.join(',')})`;

export function addHost(root: Command): void {
  const host = noun(root, 'host', 'This host, and the hosts it is paired with', 'ax host list');
  action(verb(host, 'id', 'who this host is', 'ax host id'), hostId);
  addPairing(host);
  const list = verb(host, 'list', 'known hosts', 'ax host list').alias('ls');
  action(list, hostList);
  action(verb(host, 'show <host>', 'one host', 'ax host show hostb'), async (run) => {
    const shown = await call<{ host: HostRow; fingerprint: string; pending: unknown }>(run.environment, 'host.show', { host: run.args[0] });
    const { host: row, ...rest } = shown;
    await run.print({ type: 'host', fields: { ...row, ...rest }, human: hostText(row, shown.fingerprint, shown.pending) });
  });
  const ping = verb(host, 'ping <host>', 'round trips to a host', 'ax host ping hostb').option('--count <n>', 'how many (default 3)');
  action(ping, async (run) => {
    const count = wholeOption(run.options, 'count', '--count', 1) ?? 3;
    const what = `${run.args[0] ?? ''} to answer`;
    const pinged = await call<{ host_id: string; name: string; rtt_ms: number[]; version: string }>(
      run.environment,
      'host.ping',
      { host: run.args[0], count },
      { what },
    );
    const times = pinged.rtt_ms.map((rtt) => `${rtt.toFixed(1)} ms`).join(', ');
    await run.print({
      type: 'host_ping',
      fields: { ...pinged },
      human: `${visible(pinged.name)} answers in ${times} (ax ${visible(pinged.version)})`,
    });
  });
  addChanges(host);
  addGrants(host);
}

/** The grants typed, judged here; undefined when none were. */
function grantOption(run: Run): readonly string[] | undefined {
  return known(listOption(run.options, 'grant'), 'grant', GRANT_ACTIONS);
}

async function hostId(run: Run): Promise<void> {
  const own = await call<{ host_id: string; name: string; fingerprint: string; addresses: string[] }>(run.environment, 'host.id');
  const rows = [
    ['name', own.name],
    ['host id', own.host_id],
    ['fingerprint', own.fingerprint],
    ...own.addresses.map((address) => ['address', address]),
  ];
  await run.print({ type: 'host_identity', fields: { ...own }, human: rowsOf(rows).join('\n') });
}

function addPairing(host: Command): void {
  const invite = asOwner(verb(host, 'invite', 'make a one-time pairing code for another host', 'ax host invite --ttl 15m'))
    .option('--grant <actions>', GRANT_HELP, collect)
    .option('--ttl <span>', 'how long the code works (default 15m)');
  action(invite, async (run) => {
    requireOwner(run.environment, run.options['asOwner'] === true, 'host invite');
    const params = { grants: grantOption(run), ttl_ms: durationOption(run.options, 'ttl', '--ttl', 1000) };
    const made = await call<{ code: string; expires_at: number; warnings?: readonly string[] }>(run.environment, 'host.invite', params);
    for (const warning of made.warnings ?? []) note(warning);
    const left = ago(made.expires_at).replace(/^in /, '');
    const human = `${visible(made.code)}\n\nA secret, good once, for ${left}. On the other host, paste it at the question of:\n  ax host join`;
    await run.print({ type: 'host_invite', fields: { ...made }, human });
  });
  const join = asOwner(
    verb(host, 'join [code]', 'pair with the host that made a code; asks for it, or takes it on stdin (-)', 'ax host join --name hosta'),
  )
    .option('--name <alias>', 'what this host calls the other')
    .option('--grant <actions>', GRANT_HELP, collect);
  action(join, async (run) => {
    requireOwner(run.environment, run.options['asOwner'] === true, 'host join');
    const name = textOption(run.options, 'name');
    if (name !== undefined) inLine(() => parseName(name, 'a host alias'));
    const grants = grantOption(run);
    const code = await readCode(run.args[0]);
    const params = { code, name, grants };
    const joined = await call<Joined>(run.environment, 'host.join', params, { what: 'the other host to answer' });
    await run.print({ type: 'host_joined', fields: { ...joined }, human: joinedText(run, joined, params.grants !== undefined) });
  });
  const add = asOwner(
    verb(
      host,
      'add <alias> <address>',
      'know a host by hand; needed on both sides',
      'ax host add hostb /ip4/192.0.2.7/tcp/19264/p2p/12D3KooWLw7rWoEy1NrX6DsXbFQoTnpCBfRwvtjVNqUpDRaFWRZQ',
    ),
  ).option('--grant <actions>', GRANT_HELP, collect);
  action(add, async (run) => {
    requireOwner(run.environment, run.options['asOwner'] === true, 'host add');
    inLine(() => parseName(run.args[0], 'a host alias'));
    inLine(() => parseHostAddress(run.args[1]));
    const params = { name: run.args[0], address: run.args[1], grants: grantOption(run) };
    const { host: row } = await call<{ host: HostRow }>(run.environment, 'host.add', params);
    await run.print({
      type: 'host_added',
      fields: { ...row },
      human: `added ${visible(row.name)} (${row.host_id}); the same is needed there, for this host`,
    });
  });
}

interface Joined {
  readonly host_id: string;
  readonly name: string;
  readonly grants: readonly string[];
  /** It was known here before; an older daemon does not tell. */
  readonly already_paired?: boolean;
  /** What that host says it allows this one; an older daemon does not tell. */
  readonly granted?: readonly string[];
}

/** Both directions: what the other host may here, and what it says this one may there. */
function joinedText({ environment }: Run, joined: Joined, isGrantTyped: boolean): string {
  const name = visible(joined.name);
  const { already_paired: isOld = false, granted } = joined;
  const stays = isOld && !isGrantTyped ? '; that stays as it was' : '';
  const lines = [
    `${isOld ? 'already paired' : 'paired'} with ${name} (${joined.host_id}); it may ${mayHere(joined.grants)} here${stays}`,
    ...(granted === undefined ? [] : [`this host may ${mayHere(granted)} there, says ${name}`]),
  ];
  if (granted === undefined || granted.includes('read'))
    return [...lines, `next: ${axCommand(environment.ax, 'agent', 'sessions', joined.name)}`].join('\n');
  if (granted.length > 0) return lines.join('\n');
  return [...lines, 'next: its owner allows this host something; there: ax host list, then ax host grant THIS_HOST read write notify'].join(
    '\n',
  );
}

/** The pairing code: as typed, from stdin for `-` or when stdin is no terminal, else asked for without an echo. */
async function readCode(typed: string | undefined): Promise<string> {
  if (typed !== undefined && typed !== '-') {
    note('a code on the command line can be read by others on this machine; the next time, let `ax host join` ask for it');
    return typed.trim();
  }
  if (typed === undefined && process.stdin.isTTY) {
    const { isCancel, password } = await import('@clack/prompts');
    const answer = await password({ message: 'Paste the pairing code (it is not shown)', output: process.stderr });
    if (isCancel(answer)) throw new AxError('usage', 'no code was given');
    return answer.trim();
  }
  const chunks: Buffer[] = [];
  let length = 0;
  const read = async (): Promise<void> => {
    for await (const chunk of process.stdin as AsyncIterable<Buffer>) {
      chunks.push(chunk);
      length += chunk.length;
      if (length > MAX_CODE_BYTES)
        throw new AxError('too_large', `a pairing code has at most ${MAX_CODE_BYTES} bytes`, { details: { limit: MAX_CODE_BYTES } });
    }
  };
  await awaiting('the pairing code on stdin', read());
  const code = Buffer.concat(chunks).toString('utf8').trim();
  if (code === '') throw new AxError('usage', 'there was no pairing code on stdin');
  return code;
}

async function hostList(run: Run): Promise<void> {
  const { hosts } = await call<{ hosts: HostRow[] }>(run.environment, 'host.list');
  const rows = hosts.map((row) => [
    row.name,
    row.state,
    row.rtt_ms === null ? '-' : `${row.rtt_ms.toFixed(1)} ms`,
    ago(row.last_seen_at),
    row.grants.join(','),
    row.version ?? '-',
    row.host_id,
  ]);
  const empty = `no host is known yet; \`${axCommand(run.environment.ax, 'host', 'invite')}\` makes a code for one`;
  await run.print({
    type: 'host_list',
    fields: { hosts },
    rows: { columns: COLUMNS, values: hosts as unknown as Fields[] },
    human: hosts.length === 0 ? empty : await table(['HOST', 'STATE', 'RTT', 'SEEN', 'MAY HERE', 'VERSION', 'HOST ID'], rows),
  });
}

function hostText(row: HostRow, fingerprint: string, pending: unknown): string {
  const rows = [
    ['name', row.name],
    ['state', row.state],
    ['host id', row.host_id],
    ['fingerprint', fingerprint],
    ...row.addresses.map((address) => ['address', address]),
    ['may here', mayHere(row.grants)],
    ...row.grant_rules.map((rule) => ['', ruleText(rule)]),
    ['seen', ago(row.last_seen_at)],
    ['round trip', row.rtt_ms === null ? '-' : `${row.rtt_ms.toFixed(1)} ms`],
    ['version', row.version ?? '-'],
    ...(typeof pending === 'number' ? [['waiting to go', String(pending)]] : []),
  ];
  return rowsOf(rows).join('\n');
}

function addChanges(host: Command): void {
  const rename = asOwner(verb(host, 'rename <host> <alias>', 'call a host something else here', 'ax host rename hostb builder'));
  action(rename, async (run) => {
    requireOwner(run.environment, run.options['asOwner'] === true, 'host rename');
    inLine(() => parseName(run.args[1], 'a host alias'));
    const renamed = await call<{ host_id: string; name: string }>(run.environment, 'host.rename', { host: run.args[0], name: run.args[1] });
    await run.print({ type: 'host_renamed', fields: { ...renamed }, human: `${renamed.host_id} is now ${visible(renamed.name)}` });
  });
  const remove = asOwner(verb(host, 'remove <host>', 'forget a host and what it may do here', 'ax host remove hostb')).option(
    '--cancel-pending',
    'also cancel what waits to go there',
  );
  action(remove, async (run) => {
    requireOwner(run.environment, run.options['asOwner'] === true, 'host remove');
    const params = { host: run.args[0], cancel_pending: run.options['cancelPending'] === true };
    const removed = await call<{ host_id: string; name: string; cancelled: unknown; warnings?: string[] }>(
      run.environment,
      'host.remove',
      params,
    );
    const cancelled =
      typeof removed.cancelled === 'number' && removed.cancelled > 0
        ? `; ${count(removed.cancelled, 'waiting message was', 'waiting messages were')} cancelled`
        : '';
    await run.print({
      type: 'host_removed',
      fields: { ...removed },
      human: [
        `removed ${visible(removed.name)} (${removed.host_id})${cancelled}`,
        ...(removed.warnings ?? []).map((warning) => `note: ${visible(warning)}`),
      ].join('\n'),
    });
  });
}
