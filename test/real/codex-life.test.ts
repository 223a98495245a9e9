/**
 * Genuine Codex threads that come and go, end to end: unloaded, archived, the app-server stopped, killed and started again, ax's own daemon
 * started again, and a plain `codex` in a terminal that attaches by itself.
 *
 * What is asserted each time: nothing is told to a thread that is not there, messages wait, and arrive once when it is back.
 */
import assert from 'node:assert/strict';
import { until } from '../e2e/hosts.ts';
import type { Json } from '../e2e/processes.ts';
import { CodexBed, triggers } from './codex-bed.ts';
import { codexEnv } from './codex-daemon.ts';
import { TITLE } from './codex-model.ts';
import { matrix } from './matrix.ts';
import { KEYS, Terminal } from './terminal.ts';

const cell = matrix<CodexBed>('codex', import.meta.filename, {
  make: (installed) => CodexBed.make(installed, { trusted: ['terminal'] }),
  end: (bed) => bed.end(),
});

/** Waits until the sender reads `fetched` and the thread is at rest, and asserts that its model fetched the message once. */
async function assertFetchedOnce(bed: CodexBed, thread: string, id: string): Promise<void> {
  await bed.a.untilStatus(id, { state: 'fetched' });
  await bed.owner.untilStatus(thread, 'idle');
  const fetches = bed.model.runs.filter((run) => run.thread === thread && run.command.includes(`messages fetch ${id}`));
  assert.equal(fetches.length, 1);
}

/** A message that waits for nobody: nothing was tried for it. */
async function waits(bed: CodexBed, id: string): Promise<void> {
  const status = await bed.a.untilStatus(id, { state: 'accepted', live_session: false });
  assert.equal(status['receiver_notice'], null);
}

cell('a thread that was unloaded is listed no more, and what was sent meanwhile arrives once it is resumed', async (bed) => {
  const { workspace, thread } = await bed.thread('unloaded');
  bed.model.obeying.add(thread);
  await bed.untilListed(thread, 'idle');
  await bed.owner.call('thread/unsubscribe', { threadId: thread });
  await bed.owner.untilStatus(thread, 'notLoaded'); // also shows that ax's looking does not keep it loaded
  await bed.untilGone(thread);
  const id = await bed.send(workspace);
  await waits(bed, id);
  assert.deepEqual(await bed.ours(thread), []);
  await bed.owner.call('thread/resume', { threadId: thread });
  assert.deepEqual(triggers(await bed.untilTurns(thread, 2)), ['user', 'queue']);
  await assertFetchedOnce(bed, thread, id);
  return 'gone from the list after its unloading; nothing queued for it; fetched once after the resume';
});

cell('an archived thread is listed no more, and what was sent meanwhile arrives once it is back', async (bed) => {
  const { workspace, thread } = await bed.thread('archived');
  bed.model.obeying.add(thread);
  await bed.untilListed(thread, 'idle');
  await bed.owner.call('thread/archive', { threadId: thread });
  await bed.untilGone(thread);
  const id = await bed.send(workspace);
  await waits(bed, id);
  await bed.owner.call('thread/unarchive', { threadId: thread });
  await bed.owner.call('thread/resume', { threadId: thread });
  await assertFetchedOnce(bed, thread, id);
  return 'gone from the list; nothing queued for it; fetched once after unarchive and resume';
});

cell('the app-server stops cleanly: its threads are gone, messages wait and arrive once it is back', async (bed) => {
  const { workspace, thread } = await bed.thread('stopped');
  bed.model.obeying.add(thread);
  await bed.untilListed(thread, 'idle');
  await bed.server.stop();
  await until('no thread to be listed', async () => (await bed.listed()).length === 0 || 'some');
  const id = await bed.send(workspace);
  await waits(bed, id);
  await bed.reopen();
  await bed.owner.call('thread/resume', { threadId: thread });
  await assertFetchedOnce(bed, thread, id);
  await bed.untilListed(thread, 'idle');
  assert.deepEqual(triggers(bed.model.turns(thread)), ['user', 'queue']);
  return 'no sessions and no error while it was away; back after its start; fetched once';
});

cell('the app-server is killed with a notice in the queue: the notice is not doubled and the message arrives once', async (bed) => {
  const { workspace, thread } = await bed.thread('killed');
  bed.model.obeying.add(thread);
  await bed.busyTurn(thread);
  const id = await bed.send(workspace);
  await bed.a.untilStatus(id, { receiver_notice: 'in_queue' });
  assert.equal((await bed.ours(thread)).length, 1);
  await bed.server.kill9();
  await until('no thread to be listed', async () => (await bed.listed()).length === 0 || 'some');
  await bed.a.untilStatus(id, { state: 'accepted', live_session: false });
  await bed.reopen();
  assert.equal((await bed.ours(thread)).length, 1, 'the queue outlives the kill');
  await bed.owner.call('thread/resume', { threadId: thread });
  await assertFetchedOnce(bed, thread, id);
  assert.deepEqual(await bed.ours(thread), []);
  assert.equal(bed.model.turns(thread).filter((turn) => turn.trigger === 'queue').length, 1);
  return 'both files of its socket stay behind: no sessions, no error; the item survives in its database; one notice, one fetch';
});

cell("ax's own daemon starts again while its notice waits in the queue: it adds no second one", async (bed) => {
  const { workspace, thread } = await bed.thread('axagain');
  bed.model.obeying.add(thread);
  const turn = await bed.busyTurn(thread);
  const id = await bed.send(workspace);
  await bed.a.untilStatus(id, { receiver_notice: 'in_queue' });
  await bed.b.kill9();
  await bed.b.start();
  await bed.a.untilUp(bed.b);
  await bed.untilListed(thread, 'busy');
  const second = await bed.send(workspace, 'a second one');
  await bed.a.untilStatus(second, { state: 'accepted' });
  assert.equal((await bed.ours(thread)).length, 1);
  bed.model.release(thread);
  assert.equal(await bed.owner.turnEnd(thread, turn), 'completed');
  await assertFetchedOnce(bed, thread, id);
  return 'the item of its earlier life is known by its mark; one notice in the queue; fetched once';
});

cell('a plain codex in a terminal attaches to the app-server, is listed, and shows the notice as a message of its own', async (bed) => {
  const workspace = bed.b.workspace('terminal');
  const terminal = new Terminal(bed.server.setup.program, [], { env: codexEnv(bed.server.setup), cwd: workspace });
  try {
    await terminal.until('Ask Codex to do anything');
    let row: Json | undefined;
    await until('the terminal to be listed', async () => {
      row = (await bed.listed()).find((one) => one['workspace'] === workspace);
      return row?.['status'] === 'idle' || JSON.stringify(row ?? 'not listed');
    });
    const thread = String(row?.['session_id']);
    const known = (await bed.owner.call('thread/read', { threadId: thread }))['thread'] as Json;
    assert.deepEqual([known['source'], known['ephemeral']], ['vscode', false]);
    // Its first message makes a short-lived helper that finds a title; held here, so that it lives while the list is read.
    bed.model.script('thread_title', { hold: true });
    terminal.type('hello from the terminal');
    await terminal.until('hello from the terminal');
    terminal.type(KEYS.enter);
    let helper = '';
    await until('the title helper', async () => {
      helper = bed.model.requests.find((request) => request.source === 'thread_title')?.thread ?? '';
      return bed.model.isHolding(helper) || 'no request yet';
    });
    assert.ok(((await bed.owner.call('thread/loaded/list'))['data'] as string[]).includes(helper), 'it is loaded');
    await bed.untilTurns(thread, 1); // else what is scripted below could be the answer to it
    await bed.untilListed(thread, 'idle');
    assert.equal(await bed.row(helper), undefined);
    bed.model.release(helper, TITLE);
    await terminal.until('a title');
    terminal.type('half a draft');
    await terminal.until('half a draft');
    bed.model.script(thread, { say: 'I have seen the notice' });
    const id = await bed.send(workspace);
    await bed.a.untilStatus(id, { receiver_notice: 'left_queue' });
    await terminal.until('I have seen the notice');
    const screen = await terminal.until(id);
    assert.match(screen, /ax on this host: a message waits/);
    assert.match(screen, /half a draft/, "the user's draft is untouched");
    assert.deepEqual(triggers(bed.model.turns(thread)), ['user', 'queue']);
  } finally {
    await terminal.kill();
  }
  await until('it to be listed no more', async () => !(await bed.listed()).some((one) => one['workspace'] === workspace) || 'listed');
  return 'listed (source "vscode"); its ephemeral title helper is not; the notice and its answer are on the screen, a draft stays; gone after it ended';
});
