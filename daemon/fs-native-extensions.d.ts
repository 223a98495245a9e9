/** What lock.ts uses of fs-native-extensions, which ships no types: an exclusive OS lock on an open file; false if another holds it. */
declare module 'fs-native-extensions' {
  export function tryLock(fd: number): boolean;
}
