/**
 * Addresses: how people name hosts and agents; an address that is taken can be dialled.
 */
import assert from 'node:assert/strict';
import { isIPv4, isIPv6 } from 'node:net';
import { test } from 'node:test';
import { multiaddr } from '@multiformats/multiaddr';
import fc from 'fast-check';
import { parseAgentAt, parseHarness, parseHostAddress, parseHostRef, parseListenAddress } from '../../protocol/address.ts';
import { AxError } from '../../protocol/errors.ts';
import { ALICE, outcome, refusal } from './sample.ts';

const invalid = refusal('invalid_argument');
const id = ALICE.hostId;

test('HOST is Localhost in any case, a whole id, an address with an id, or an alias', () => {
  for (const typed of ['Localhost', 'localhost', 'LOCALHOST']) assert.deepEqual(parseHostRef(typed), { kind: 'local' });
  assert.deepEqual(parseHostRef(id), { kind: 'id', id });
  assert.deepEqual(parseHostRef(`/ip4/192.0.2.7/tcp/19264/p2p/${id}`), { kind: 'address', id, address: '/ip4/192.0.2.7/tcp/19264' });
  assert.deepEqual(parseHostRef('build-1'), { kind: 'alias', alias: 'build-1' });
  for (const typed of [
    '',
    ' ',
    'a b',
    '/ip4/192.0.2.7/tcp/1',
    `/ip4/192.0.2.7/p2p/${id}`,
    `/p2p/${id}`,
    `${id}/`,
    'a@b',
    'a\u202eb',
    null,
    7,
  ])
    assert.throws(() => parseHostRef(typed), invalid, String(typed));
});

test('an address names TCP on an IP address or a name, and a port', () => {
  for (const good of [
    '/ip4/0.0.0.0/tcp/0',
    '/ip4/255.255.255.255/tcp/65535',
    '/ip6/::/tcp/1',
    '/ip6/2001:db8::7/tcp/1',
    '/ip6/::ffff:192.0.2.7/tcp/1',
    '/ip6/1:2:3:4:5:6:7:8/tcp/1',
    '/dns/h/tcp/1',
    '/dns4/host.example/tcp/1',
    '/dns6/a-b.c/tcp/1',
  ]) {
    assert.equal(parseListenAddress(good), good);
    assert.ok(multiaddr(good));
  }
  const bad = [
    '/ip4/256.1.1.1/tcp/1',
    '/ip4/01.2.3.4/tcp/1',
    '/ip4/1.2.3/tcp/1',
    '/ip6/1::2::3/tcp/1',
    '/ip6/:1:2:3:4:5:6:7/tcp/1',
    '/ip6/12345::/tcp/1',
    '/ip6/1.2.3.4/tcp/1',
    '/ip6/fe80::1%eth0/tcp/1',
    '/ip6/1:2/tcp/1',
    '/ip4/1.2.3.4/tcp/65536',
    '/ip4/1.2.3.4/tcp/01',
    '/ip4/1.2.3.4/tcp/',
    '/ip4/1.2.3.4/udp/1',
    '/ip4/1.2.3.4/tcp/1/ws',
    '/dns4/-a/tcp/1',
    '/dns4/a_b/tcp/1',
    '/dns4/a b/tcp/1',
    '/unix/tmp',
    'ip4/1.2.3.4/tcp/1',
    '',
    null,
    4,
  ];
  for (const typed of bad) assert.throws(() => parseListenAddress(typed), invalid, String(typed));
});

test('exactly the IP addresses of the platform are taken as IP addresses', () => {
  const part = fc.constantFrom('0', '1', 'f', 'ab', 'ffff', '12345', ':', '::', ':', '.', '1.2.3.4', '255', '256', '01');
  fc.assert(
    fc.property(fc.array(part, { minLength: 1, maxLength: 12 }), (parts) => {
      const typed = parts.join('');
      const ip6 = !(outcome(() => parseListenAddress(`/ip6/${typed}/tcp/1`)) instanceof AxError);
      const ip4 = !(outcome(() => parseListenAddress(`/ip4/${typed}/tcp/1`)) instanceof AxError);
      assert.equal(ip6, isIPv6(typed) && typed.length <= 45, typed);
      assert.equal(ip4, isIPv4(typed), typed);
      if (ip6) assert.ok(multiaddr(`/ip6/${typed}/tcp/1`));
    }),
    { numRuns: 3000 },
  );
});

test('a host address ends in exactly one host id', () => {
  const address = parseHostAddress(`/dns4/host.example/tcp/19264/p2p/${id}`);
  assert.deepEqual(address, { kind: 'address', id, address: '/dns4/host.example/tcp/19264' });
  for (const typed of [
    `/ip4/1.2.3.4/tcp/1/p2p/${id}/p2p/${id}`,
    '/ip4/1.2.3.4/tcp/1/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N',
    id,
    '',
    null,
  ])
    assert.throws(() => parseHostAddress(typed), invalid);
});

test('NAME@HOST is cut at the first @, and neither half may be empty', () => {
  assert.deepEqual(parseAgentAt('alice@build'), { name: 'alice', host: 'build' });
  assert.deepEqual(parseAgentAt(`a@${id}`), { name: 'a', host: id });
  assert.deepEqual(parseAgentAt(`a@/ip4/1.2.3.4/tcp/1/p2p/${id}`).host, `/ip4/1.2.3.4/tcp/1/p2p/${id}`);
  for (const typed of ['alice', '@build', 'alice@', '@', 'a b@c', 'localhost@c', null, {}])
    assert.throws(() => parseAgentAt(typed), invalid, JSON.stringify(typed));
});

test('a harness is one of the known', () => {
  for (const name of ['claude', 'codex']) assert.equal(parseHarness(name), name);
  for (const name of ['Claude', '', 'toString', '__proto__', null, 0]) assert.throws(() => parseHarness(name), invalid);
});

test('any text gives a reference or an AxError', () => {
  fc.assert(
    fc.property(
      fc.oneof(
        fc.string({ unit: 'binary' }),
        fc.string().map((text) => `/ip4/${text}/p2p/${id}`),
      ),
      (typed) => {
        for (const parse of [parseHostRef, parseHostAddress, parseListenAddress, parseAgentAt, parseHarness])
          outcome<unknown>(() => parse(typed));
      },
    ),
  );
});
