/** Hosts that go down and come up, end too late, exist twice, or may not wake anybody: real daemons in namespaces. */
import assert from 'node:assert/strict';
import { cpSync, readdirSync, readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { sessionOf, until } from '../e2e/hosts.ts';
import type { Host } from '../e2e/hosts.ts';
import { assertBooks, assertTruthful, post, send, untilAll } from './books.ts';
import { scenarios } from './world.ts';

type Step = 'a down' | 'a up' | 'b down' | 'b up';
/** Every order of both going down and coming up. */
const ORDERS: readonly (readonly Step[])[] = [
  ['a down', 'a up', 'b down', 'b up'],
  ['b down', 'b up', 'a down', 'a up'],
  ['a down', 'b down', 'a up', 'b up'],
  ['a down', 'b down', 'b up', 'a up'],
  ['b down', 'a down', 'a up', 'b up'],
  ['b down', 'a down', 'b up', 'a up'],
];
const QUIET_MS = 10_000;

/** Processes that this one ever started and that have ended, in page faults; and those that run now. */
function childrenOf(pid: number): { readonly past: number; readonly now: readonly string[] } {
  const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
  const past = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[8]);
  const now = readdirSync(`/proc/${pid}/task`).flatMap((task) =>
    readFileSync(`/proc/${pid}/task/${task}/children`, 'latin1')
      .split(' ')
      .filter((one) => one !== ''),
  );
  return { past, now };
}

async function warningsOf(host: Host): Promise<string> {
  const { attention } = await host.call<{ attention: { what: string }[] }>('admin.status');
  return attention.map((row) => row.what).join('; ');
}

scenarios(import.meta.filename, (scenario) => {
  scenario(
    'both hosts go down and come up in every order, killed or stopped, and nothing on its way is lost or doubled',
    async (world) => {
      const [a, b] = await world.pair();
      const mails = [post(a.host, b.host), post(b.host, a.host)];
      let downs = 0;
      const act = async (step: Step, isKilled: boolean): Promise<void> => {
        const { host } = step.startsWith('a') ? a : b;
        if (step.endsWith('up')) return void (await host.start({ direct: true }));
        downs += 1;
        await (isKilled ? host.kill9() : host.stop());
      };
      for (const [n, order] of [...ORDERS, ...ORDERS].entries()) {
        // Each order with both killed, and with one killed and the other stopped in order.
        const isStopped = { a: n >= 6 && n % 2 === 0, b: n >= 6 && n % 2 === 1 };
        const sending = mails.map((mail) => send(mail, 8));
        const live = async (): Promise<void> => {
          for (const step of order) await act(step, !isStopped[step.startsWith('a') ? 'a' : 'b']);
        };
        // At the first answer some are on their way, and some are not sent yet.
        await Promise.all([...sending, Promise.race(sending).then(live)]);
      }
      await Promise.all(mails.map((mail) => untilAll(mail, 'accepted')));
      await assertBooks(...mails);
      return `6 orders, each twice, ${downs} downs; ${mails.reduce((sum, mail) => sum + mail.sent.size, 0)} messages once each`;
    },
    { tools: [] },
  );

  scenario(
    'a message whose receiver is dead for the whole forwarding time expires, certainly unseen; tried again, it arrives once',
    async (world) => {
      const [a, b] = await world.pair();
      const mail = post(a.host, b.host);
      await b.host.kill9();
      await until('b to be down at a', async () => {
        const { hosts } = await a.host.call<{ hosts: { state: string }[] }>('host.list');
        return hosts[0]?.state === 'down' ? true : JSON.stringify(hosts);
      });
      const sent = await a.host.ok([
        'send',
        '--host',
        'hostb',
        '--destination-workspace',
        mail.workspace,
        '--harness',
        'claude',
        '--deadline',
        '2s',
        'late',
      ]);
      const ids = [String(sent['message_id']), ...(await send(mail, 4, { deadline_ms: 2000 }))];
      for (const id of ids) assert.equal((await a.host.untilStatus(id, { state: 'expired' }))['uncertain'], false);
      const dead = await a.host.ok(['admin', 'dead']);
      assert.deepEqual((dead['messages'] as { message_id: string }[]).map((row) => row.message_id).toSorted(), ids.toSorted());
      await b.host.start({ direct: true });
      await a.host.untilUp(b.host);
      await send(mail, 1);
      await until('what was sent later to be there', async () => ((await assertTruthful(mail)).there === 1 ? true : 'not yet'));
      for (const id of mail.sent.keys()) if (ids.includes(id)) await a.host.ok(['admin', 'retry', id]);
      await untilAll(mail, 'accepted');
      await assertBooks(mail);
      return '5 of 5 expired as certain, none of them delivered when the receiver came back; 4 tried again arrived once';
    },
    { tools: [] },
  );

  scenario(
    'a state folder that runs in two places is noticed by both sides',
    async (world) => {
      const [a, b] = await world.pair();
      await b.host.stop();
      const twin = world.bed.host('twin', { prefix: world.net.station('twin').prefix, listen: `/ip4/0.0.0.0/tcp/0` });
      cpSync(b.host.stateDir, twin.stateDir, { recursive: true });
      await b.host.start({ direct: true });
      await a.host.untilUp(b.host);
      await twin.start({ direct: true });
      const began = performance.now();
      assert.equal(twin.hostId, b.host.hostId);
      await until('a to say so', async () => (/alive in two places/.test(await warningsOf(a.host)) ? true : 'no warning'), 90_000);
      const seconds = Math.round((performance.now() - began) / 1000);
      for (const one of [b.host, twin]) {
        await one.ok(['host', 'ping', 'hosta']); // else told by its next greeting, within a minute
        assert.match(await warningsOf(one), /sees this host's own id alive in two places/);
      }
      return `the third host noticed after ${seconds} s, and both were told so when they greeted it next`;
    },
    { tools: [] },
  );

  scenario(
    'messages of a host that may not notify become notes: no process, no byte to a session, no turn',
    async (world) => {
      const [a, b] = await world.pair();
      const mail = post(a.host, b.host);
      const session = await b.host.session(mail.workspace);
      await b.host.call('agent.setup', { name: 'worker', workspace: mail.workspace }, sessionOf(session));
      await b.host.ok(['host', 'revoke', 'hosta', 'notify']);
      const look = async (): Promise<{ connections: number; bytes: number }> => session.send({ cmd: 'state' });
      const [before, children] = [await look(), childrenOf(b.host.pid)];
      await delay(QUIET_MS); // as long as the messages will take, without any: looking whether a session lives is no writing
      const quiet = await look();
      const began = performance.now();
      for (let n = 0; n < 50; n++) {
        await send(mail, 1);
        assert.deepEqual(childrenOf(b.host.pid), children, 'a process was started');
        await delay(Math.max(0, began + ((n + 1) * QUIET_MS) / 50 - performance.now()));
      }
      await untilAll(mail, 'accepted');
      const after = await look();
      assert.deepEqual([after.bytes, session.all('frame').length, session.all('turn').length], [0, 0, 0]);
      const [idle, busy] = [quiet.connections - before.connections, after.connections - quiet.connections];
      assert.ok(busy <= idle + 1, `${busy} connections with messages, ${idle} without`);
      assert.deepEqual(childrenOf(b.host.pid), children, 'a process was started');
      for (const id of mail.sent.keys()) assert.equal((await a.host.call('admin.message_status', { id }))['stored_as'], 'note');
      await assertBooks(mail);
      await b.host.ok(['host', 'grant', 'hosta', 'notify']);
      await send(mail, 1);
      await session.next('frame'); // the same eyes see a notice that is allowed
      assert.ok((await look()).bytes > 0);
      return `50 messages in 10 s: 0 bytes, 0 turns, 0 processes; ${busy} looks at the session, ${idle} in 10 s without messages`;
    },
    { tools: [] },
  );
});
