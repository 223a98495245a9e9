/**
 * The settings files of Claude Code that reach a session, as far as ax reads them: messages from other sessions, permissions, the sandbox.
 *
 * Owns the order of the files and what it means. Nothing is written here. A `--settings` flag of a running session cannot be seen, nor
 * can its permission mode: what is said holds for sessions without that flag.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { harnessFolders } from './environment.ts';

/** Strictest last. */
const INBOUND = ['accept', 'hold', 'refuse'] as const;
export type Inbound = (typeof INBOUND)[number];

export interface Layer {
  readonly kind: 'managed' | 'user' | 'project';
  readonly path: string;
  /** Null when the file is no JSON object; `problem` then says why. */
  readonly settings: Readonly<Record<string, unknown>> | null;
  readonly problem?: string;
}

function managedFolder(): string {
  return process.platform === 'darwin' ? '/Library/Application Support/ClaudeCode' : '/etc/claude-code';
}

/** The settings files there are: managed, the user's, the workspace's. Missing ones are left out. */
export function claudeLayers(workspace: string | null, managed = managedFolder()): Layer[] {
  const project = workspace === null ? [] : ['settings.json', 'settings.local.json'].map((name) => join(workspace, '.claude', name));
  const user = userSettings();
  return [
    ...[join(managed, 'managed-settings.json'), ...dropIns(managed)].flatMap((path) => layer('managed', path)),
    ...layer('user', user),
    ...project.filter((path) => path !== user).flatMap((path) => layer('project', path)),
  ];
}

/** The file of the user's own settings, there or not. */
export function userSettings(): string {
  return join(harnessFolders().claude, 'settings.json');
}

function dropIns(managed: string): string[] {
  const folder = join(managed, 'managed-settings.d');
  try {
    return readdirSync(folder)
      .filter((name) => name.endsWith('.json') && !name.startsWith('.'))
      .toSorted()
      .map((name) => join(folder, name));
  } catch {
    return []; // most hosts have no such folder
  }
}

function layer(kind: Layer['kind'], path: string): Layer[] {
  let text: string;
  try {
    text = readFileSync(path, 'utf8').replace(/^\ufeff/, '');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    return code === 'ENOENT' || code === 'ENOTDIR'
      ? []
      : [{ kind, path, settings: null, problem: `it cannot be read (${code ?? 'unknown'})` }];
  }
  try {
    const settings: unknown = JSON.parse(text);
    if (isFields(settings)) return [{ kind, path, settings }];
    return [{ kind, path, settings: null, problem: 'it is not a JSON object' }];
  } catch {
    return [{ kind, path, settings: null, problem: 'it is not JSON' }];
  }
}

function isFields(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function at(layer: Layer, path: readonly string[]): unknown {
  let value: unknown = layer.settings;
  for (const key of path) value = isFields(value) && Object.hasOwn(value, key) ? value[key] : undefined;
  return value;
}

/** The strings of a list in one of the files. */
export function stringsAt(layer: Layer, path: readonly string[]): string[] {
  const value = at(layer, path);
  return Array.isArray(value) ? value.filter((entry) => typeof entry === 'string') : [];
}

/** The file that turns the shell's sandbox on, the last that says anything about it; undefined when it is off. */
export function sandboxLayer(layers: readonly Layer[]): Layer | undefined {
  const managed = layers.findLast((entry) => entry.kind === 'managed' && typeof at(entry, ['sandbox', 'enabled']) === 'boolean');
  const own = layers.findLast((entry) => entry.kind !== 'managed' && typeof at(entry, ['sandbox', 'enabled']) === 'boolean');
  const says = managed ?? own;
  return says !== undefined && at(says, ['sandbox', 'enabled']) === true ? says : undefined;
}

/** What happens to a message from outside, and which file says so. */
export interface InboundRule {
  readonly value: Inbound;
  readonly layer: Layer;
  /** The file holds a value that Claude Code does not know. */
  readonly isUnknown: boolean;
}

/** Managed settings, then the user's: the first that says anything. Those of the workspace count only when they are stricter. */
export function inboundRule(layers: readonly Layer[]): InboundRule | undefined {
  const rules = layers.flatMap((entry): InboundRule[] => {
    const value = at(entry, ['crossSessionInbound']);
    if (value === undefined) return [];
    const known = INBOUND.find((name) => name === value);
    // An unknown value refuses in managed settings, and holds elsewhere.
    return [{ layer: entry, value: known ?? (entry.kind === 'managed' ? 'refuse' : 'hold'), isUnknown: known === undefined }];
  });
  const base = rules.findLast((rule) => rule.layer.kind === 'managed') ?? rules.find((rule) => rule.layer.kind === 'user');
  const strictness = (rule: InboundRule | undefined): number => (rule === undefined ? 0 : INBOUND.indexOf(rule.value));
  return rules
    .filter((rule) => rule.layer.kind === 'project')
    .reduce((found, rule) => (strictness(rule) > strictness(found) ? rule : found), base);
}

/** The file that makes sessions start with all permissions bypassed. */
export function bypassLayer(layers: readonly Layer[]): Layer | undefined {
  const says = layers.findLast((entry) => typeof at(entry, ['permissions', 'defaultMode']) === 'string');
  const isOff = layers.some((entry) => at(entry, ['permissions', 'disableBypassPermissionsMode']) === 'disable');
  return says !== undefined && !isOff && at(says, ['permissions', 'defaultMode']) === 'bypassPermissions' ? says : undefined;
}
