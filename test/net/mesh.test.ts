/** Five hosts that all know each other: loss with a restart in the middle, and a network that falls into two and heals. */
import assert from 'node:assert/strict';
import { join2, seeded } from '../e2e/hosts.ts';
import { assertBooks, assertTruthful, post, send, untilAll, type Post } from './books.ts';
import { scenarios, type Machine, type World } from './world.ts';

const SEED = Number(process.env['SEED'] ?? 1);

/** Five hosts, each paired with each; and the post from each to each. */
async function mesh(world: World): Promise<{ readonly machines: readonly Machine[]; readonly mails: readonly Post[] }> {
  const machines = await Promise.all(['hosta', 'hostb', 'hostc', 'hostd', 'hoste'].map((name) => world.machine(name)));
  for (const [n, one] of machines.entries()) for (const other of machines.slice(n + 1)) await join2(one.host, other.host);
  const mails = machines.flatMap((from) => machines.filter((to) => to !== from).map((to) => post(from.host, to.host)));
  return { machines, mails };
}

scenarios(import.meta.filename, (scenario) => {
  scenario(
    'five hosts all send to all with a fifth of all packets lost, one is killed meanwhile: 400 messages, once each',
    async (world) => {
      const { machines, mails } = await mesh(world);
      const by = world.net.lose(20);
      const victim = machines[seeded(SEED)(machines.length)];
      const restart = async (): Promise<void> => {
        await victim?.host.kill9();
        await victim?.host.start({ direct: true });
      };
      const sending = mails.flatMap((mail) => [send(mail, 10), send(mail, 10)]);
      await Promise.all([...sending, Promise.race(sending).then(restart)]);
      for (const mail of mails) await assertTruthful(mail);
      const took = Math.max(...(await Promise.all(mails.map((mail) => untilAll(mail, 'accepted')))));
      await assertBooks(...mails);
      return `400 of 400 once each, ${(took / 1000).toFixed(1)} s after ${victim?.station.name} was killed and started; loss by ${by}`;
    },
  );

  scenario(
    'a network of five that falls into two and three tells what crosses as not accepted; healed, all is there once',
    async (world) => {
      const { machines, mails } = await mesh(world);
      const left = machines.slice(0, 2);
      const isCrossing = ({ from, to }: Post): boolean => left.some(({ host }) => host === from) !== left.some(({ host }) => host === to);
      const [crossing, staying] = [mails.filter(isCrossing), mails.filter((mail) => !isCrossing(mail))];
      const pairs = left.flatMap(({ station: from }) => machines.slice(2).map(({ station: to }) => ({ from, to })));
      world.net.cut(...pairs, ...pairs.map(({ from, to }) => ({ from: to, to: from })));
      await Promise.all(mails.map((mail) => send(mail, 5)));
      await Promise.all(staying.map((mail) => untilAll(mail, 'accepted')));
      for (const mail of crossing) assert.deepEqual(await assertTruthful(mail), { there: 0, accepted: 0 });
      world.net.cut();
      const took = Math.max(...(await Promise.all(crossing.map((mail) => untilAll(mail, 'accepted')))));
      await assertBooks(...mails);
      return `40 within the parts accepted at once, 60 across not; 100 of 100 once each ${(took / 1000).toFixed(1)} s after it healed`;
    },
  );
});
